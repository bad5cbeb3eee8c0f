"""Samples n answers to each prompt with one prefill a prompt.

The token at a position is the arg-max of (logits / T) plus Gumbel noise drawn
from the key fold_in(seed, step, task, sample, position), so it does not depend
on what else is in the batch, on the batch's order, on n, or on a restart (up to
rounding of the logits, which may differ between batch shapes by some 1e-6).

Departure from plain sampling: the logits of `forbidden_ids` are minus infinity
*before* the normalization, so a recorded log-probability is an entry of
log softmax(where(forbidden, -inf, logits / T)). The trainer has to do the same,
which is why both take their logits from `rl.logprobs.masked_logits`.
There is no top-k or top-p: the behaviour policy is the policy.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from varl_jax.models.layers import Params
from varl_jax.models.registry import CausalModel
from varl_jax.rl.logprobs import forbidden_mask, masked_logits
from varl_jax.types import Finish

SMALLEST_BUCKET = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
  """One sampled answer.

  Attributes:
    tokens: sampled ids; the stop token, when there was one, is the last.
    logprobs: log-probability of each token at the time, in nats.
    finish: `stop`, or `length` when `max_new` ended it.
  """

  tokens: tuple[int, ...]
  logprobs: tuple[float, ...]
  finish: Finish


@dataclasses.dataclass(frozen=True, kw_only=True)
class Begun:
  """Where an answer goes on that a prompt holds the begin of.

  Attributes:
    limit: most tokens still to draw.
    sample: index of the first of the n answers in its group.
    position: tokens of the answer so far, a tool's among them.
  """

  limit: int
  sample: int = 0
  position: int = 0


class _Loop(NamedTuple):
  """Carry of the decode loop.

  `hidden` is the state the next token is drawn from, `lengths` counts the
  tokens a row has.
  """

  cache: Any
  hidden: Float[Array, "G n D"]
  done: Bool[Array, "G n"]
  lengths: Int[Array, "G n"]
  tokens: Int[Array, "G n R"]
  logprobs: Float[Array, "G n R"]


class Sampler:
  """Draws answers from a model; holds no weights.

  Compiles once for each (number of prompts rounded up to a power of two, prompt
  length bucket, n); buckets double from 16 tokens up to `max_prompt`.
  """

  def __init__(
    self,
    *,
    model: CausalModel,
    stop_ids: Iterable[int],
    forbidden_ids: Iterable[int] = (),
    max_prompt: int,
    max_new: int,
    temperature: float = 1.0,
    seed: int = 0,
    max_rows: int = 512,
    continues: bool = False,
    everywhere: jax.sharding.Sharding | None = None,
  ):
    """Prepares the sampling function.

    Args:
      model: the architecture; parameters come with each call.
      stop_ids: ids that end an answer.
      forbidden_ids: ids that are never sampled.
      max_prompt: longest prompt in tokens.
      max_new: longest answer in tokens.
      temperature: T > 0.
      seed: the run's seed.
      max_rows: answers decoded at a time; more are done in several passes.
      continues: whether a prompt may hold the begin of its answer, and be that
        much longer than `max_prompt`.
      everywhere: on a mesh, the sharding by which every device, and so every
        process, gets all tokens.

    Raises:
      ValueError: an argument out of range, or an id both stop and forbidden.
    """
    stop, forbidden = sorted(set(stop_ids)), sorted(set(forbidden_ids))
    if not temperature > 0:
      raise ValueError(f"temperature is above 0, got {temperature}.")
    if min(max_prompt, max_new, max_rows) < 1:
      raise ValueError("max_prompt, max_new and max_rows are at least 1.")
    limit = model.config.max_position
    if max_prompt + max_new > limit:
      raise ValueError(
        f"max_prompt ({max_prompt}) + max_new ({max_new}) is above the"
        f" model's {limit} positions."
      )
    if set(stop) & set(forbidden):
      raise ValueError(
        f"Ids {sorted(set(stop) & set(forbidden))} are both stop and forbidden."
      )
    vocab = model.config.vocab_size
    for token in (*stop, *forbidden):
      if not 0 <= token < vocab:
        raise ValueError(f"Id {token} is outside the vocabulary ({vocab}).")
    self._model = model
    self._seed = seed
    self._max_prompt = max_prompt + (max_new if continues else 0)
    self._max_new = max_new
    self._stop = frozenset(stop)
    self._max_rows = max_rows
    self._compiles = 0
    constants = {
      "model": model,
      "stop": forbidden_mask(stop, vocab),
      "forbidden": jnp.asarray(forbidden_mask(forbidden, vocab)),
      "max_new": max_new,
      "temperature": temperature,
    }

    def draw(*arrays, n):
      self._compiles += 1  # runs when traced, not when called
      return _draw(*arrays, n=n, **constants)

    self._draw = jax.jit(draw, static_argnames="n", out_shardings=everywhere)

  def generate(
    self,
    prompts_tokens: Sequence[Sequence[int]],
    n: int,
    *,
    params: Params,
    step: int,
    tasks: Sequence[int],
    begun: Sequence["Begun"] | None = None,
  ) -> list[list[Sample]]:
    """Samples `n` answers to every prompt.

    Args:
      prompts_tokens: token ids of each prompt.
      n: answers a prompt.
      params: the model's parameters now.
      step: the training step, part of the random key.
      tasks: one number a prompt, part of the random key; two prompts with the
        same number draw the same noise.
      begun: one a prompt, for answers that a prompt holds the begin of; None
        for answers from their first token on.

    Returns:
      For each prompt, in order, its n samples.

    Raises:
      ValueError: an empty or over-long prompt, n < 1, or lengths that differ.
    """
    if len(tasks) != len(prompts_tokens):
      raise ValueError(
        f"{len(prompts_tokens)} prompts with {len(tasks)} task numbers."
      )
    if n < 1:
      raise ValueError(f"n is at least 1, got {n}.")
    for index, prompt in enumerate(prompts_tokens):
      if not 1 <= len(prompt) <= self._max_prompt:
        raise ValueError(
          f"Prompt {index} has {len(prompt)} tokens; the sampler takes 1 to"
          f" {self._max_prompt} (max_prompt)."
        )
    begun = begun or [Begun(limit=self._max_new)] * len(prompts_tokens)
    for piece in begun:
      if not 1 <= piece.limit <= self._max_new:
        raise ValueError(
          f"A limit is between 1 and {self._max_new}, got {piece.limit}."
        )
    results: list[list[Sample]] = [[] for _ in prompts_tokens]
    # Prompts of like length share a pass, so that their bucket is tight.
    order = sorted(
      range(len(prompts_tokens)), key=lambda i: len(prompts_tokens[i])
    )
    width = max(1, self._max_rows // n)
    for start in range(0, len(order), width):
      chosen = order[start : start + width]
      samples = self._pass(
        [prompts_tokens[i] for i in chosen],
        n,
        params=params,
        step=step,
        tasks=[tasks[i] for i in chosen],
        begun=[begun[i] for i in chosen],
        rows=min(width, _power_of_two(len(chosen))),
      )
      for index, group in zip(chosen, samples, strict=True):
        results[index] = group
    return results

  def compile_count(self) -> int:
    """Programs compiled so far."""
    return self._compiles

  def _pass(
    self,
    prompts: Sequence[Sequence[int]],
    n: int,
    *,
    params: Params,
    step: int,
    tasks: Sequence[int],
    begun: Sequence["Begun"],
    rows: int,
  ) -> list[list[Sample]]:
    """One device call over `rows` prompts, the last ones possibly empty."""
    longest = max(len(prompt) for prompt in prompts)
    slots = min(self._max_prompt, max(SMALLEST_BUCKET, _power_of_two(longest)))
    tokens = np.zeros((rows, slots), np.int32)
    lengths = np.zeros(rows, np.int32)
    for row, prompt in enumerate(prompts):
      tokens[row, : len(prompt)] = prompt
      lengths[row] = len(prompt)
    numbers = np.zeros(rows, np.uint32)
    numbers[: len(tasks)] = [task & 0xFFFFFFFF for task in tasks]
    starts = np.zeros((3, rows), np.int32)  # sample, position, limit
    starts[:, : len(begun)] = [
      [piece.sample for piece in begun],
      [piece.position for piece in begun],
      [piece.limit for piece in begun],
    ]
    loop = self._draw(
      params,
      tokens,
      lengths,
      numbers,
      starts,
      np.uint32(self._seed & 0xFFFFFFFF),
      np.uint32(step & 0xFFFFFFFF),
      n=n,
    )
    drawn, logprobs, counts = jax.device_get(loop)

    def sample(ids: list[int], logprobs: list[float]) -> Sample:
      return Sample(
        tokens=tuple(ids),
        logprobs=tuple(logprobs),
        finish="stop" if ids[-1] in self._stop else "length",
      )

    return [
      [
        sample(
          drawn[g, s, : counts[g, s]].tolist(),
          logprobs[g, s, : counts[g, s]].tolist(),
        )
        for s in range(n)
      ]
      for g in range(len(prompts))
    ]


def _draw(
  params: Params,
  tokens: Int[Array, "G P"],
  prompt_lengths: Int[Array, " G"],
  tasks: Int[Array, " G"],
  starts: Int[Array, "3 G"],
  seed: Int[Array, ""],
  step: Int[Array, ""],
  *,
  n: int,
  model: CausalModel,
  stop: np.ndarray,
  forbidden: Array,
  max_new: int,
  temperature: float,
) -> tuple[Array, Array, Array]:
  """Prefill and the decode loop: (tokens, logprobs, lengths)."""
  groups = tokens.shape[0]
  first, behind, limits = starts
  keys = _row_keys(seed, step, tasks, first, n)
  head = model.lm_head_weight(params)

  def pick(hidden, position):
    logits = masked_logits(hidden, head, forbidden, temperature=temperature)
    noise = _gumbel(keys, behind + position, logits.shape[-1])
    token = jnp.argmax(logits + noise, axis=-1).astype(jnp.int32)
    chosen = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
    return token, chosen - jax.nn.logsumexp(logits, axis=-1)

  def unfinished(loop: _Loop):
    return (loop.cache.step < max_new) & ~jnp.all(loop.done)

  def advance(loop: _Loop) -> _Loop:
    position = loop.cache.step
    token, logprob = pick(loop.hidden, position)
    # An answer's last token is run through the model for nothing; in return
    # the program holds one sampling step, not two.
    hidden, cache = model.decode(params, token, loop.cache)
    lengths = loop.lengths + ~loop.done
    ended = jnp.asarray(stop)[token] | (lengths >= limits[:, None])
    return _Loop(
      cache=cache,
      hidden=hidden,
      done=loop.done | ended,
      lengths=lengths,
      tokens=loop.tokens.at[..., position].set(token),
      logprobs=loop.logprobs.at[..., position].set(logprob),
    )

  # A padding row has no tokens: it reads its first slot and is done at once.
  hidden, prompt = model.prefill(params, tokens, jnp.maximum(prompt_lengths, 1))
  shape = (groups, n)
  loop = _Loop(
    cache=model.start(prompt, prompt_lengths, samples=n, slots=max_new),
    hidden=jnp.broadcast_to(hidden[:, None], (*shape, hidden.shape[-1])),
    done=jnp.broadcast_to(prompt_lengths[:, None] == 0, shape),
    lengths=jnp.zeros(shape, jnp.int32),
    tokens=jnp.zeros((*shape, max_new), jnp.int32),
    logprobs=jnp.zeros((*shape, max_new), jnp.float32),
  )
  loop = jax.lax.while_loop(unfinished, advance, loop)
  return loop.tokens, loop.logprobs, loop.lengths


def _row_keys(
  seed: Array, step: Array, tasks: Array, first: Array, n: int
) -> Array:
  """Keys [G, n] of the rows, the samples counted from `first`."""
  run = jax.random.fold_in(jax.random.key(seed), step)
  fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
  samples = first[:, None] + jnp.arange(n)
  return jax.vmap(fold)(fold(run, tasks), samples)


def _gumbel(keys: Array, positions: Array, vocab: int) -> Array:
  """Gumbel noise [G, n, V], each entry's counter being its vocabulary id.

  The uniforms use all 32 bits and are taken near 0 (log1p), where fp32 is
  fine: the right tail reaches 22.9 instead of the 16.6 of 23-bit uniforms.
  """

  def row(key, position):
    bits = jax.random.bits(
      jax.random.fold_in(key, position), (vocab,), jnp.uint32
    )
    uniform = (bits.astype(jnp.float32) + 0.5) * jnp.float32(2.0**-32)
    return -jnp.log(-jnp.log1p(-uniform))

  return jax.vmap(jax.vmap(row, in_axes=(0, None)))(keys, positions)


def _power_of_two(number: int) -> int:
  return 1 << (number - 1).bit_length()
