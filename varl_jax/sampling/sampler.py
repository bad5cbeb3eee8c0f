"""Samples n answers to each prompt with one prefill a prompt.

What the answers are is said in `draws`, how they are drawn in `slots`.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from varl_jax.models.layers import Params
from varl_jax.models.registry import CausalModel
from varl_jax.models.turns import Turns
from varl_jax.sampling.slot_programs import SEGMENT, SlotPrograms, bucket
from varl_jax.sampling.slots import SMALLEST_BUCKET, Request, Sample, Slots

# Prompt and answer, each counted from 0, and the answer.
OnSample = Callable[[int, int, Sample], None]


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


class Sampler:
  """Draws answers from a model; holds no weights.

  Compiles a few programs for each (number of prompts rounded up to a power of
  two, prompt length bucket, n); buckets double from 16 tokens up to
  `max_prompt`.
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
    segment: int = SEGMENT,
    turns: Turns | None = None,
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
      max_rows: answers decoded at a time; more wait for a free slot.
      continues: whether a prompt may hold the begin of its answer, and be that
        much longer than `max_prompt`.
      segment: tokens an answer gets between two visits of the host.
      turns: shared with others who use the devices; one is a segment.

    Raises:
      ValueError: an argument out of range, or an id both stop and forbidden.
    """
    stop, forbidden = sorted(set(stop_ids)), sorted(set(forbidden_ids))
    if not temperature > 0:
      raise ValueError(f"temperature is above 0, got {temperature}.")
    if min(max_prompt, max_new, max_rows, segment) < 1:
      raise ValueError(
        "max_prompt, max_new, max_rows and segment are at least 1."
      )
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
    self._turns = turns or Turns()
    self._seed = seed
    self._temperature = temperature
    self._max_prompt = max_prompt + (max_new if continues else 0)
    self._max_new = max_new
    self._max_rows = max_rows
    self._programs = SlotPrograms(
      model=model,
      stop_ids=stop,
      forbidden_ids=forbidden,
      segment=segment,
      temperature=temperature,
    )

  def generate(
    self,
    prompts_tokens: Sequence[Sequence[int]],
    n: int,
    *,
    params: Params,
    step: int,
    tasks: Sequence[int],
    begun: Sequence[Begun] | None = None,
    on_sample: OnSample | None = None,
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
      on_sample: called with each answer as soon as it is at its end, in any
        order, while others are still drawn.

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
    if not prompts_tokens:
      return []
    slots = self._slots(prompts_tokens, n, params, step)
    # Prompts of like length are prefilled together, so that padding is little.
    for index in sorted(
      range(len(prompts_tokens)), key=lambda i: len(prompts_tokens[i])
    ):
      piece = begun[index]
      slots.submit(
        Request(
          prompt=prompts_tokens[index],
          count=n,
          first=piece.sample,
          seed=self._seed,
          step=step,
          task=tasks[index],
          position=piece.position,
          limit=piece.limit,
          temperature=self._temperature,
          tag=index,
        )
      )
    found: list[dict[int, Sample]] = [{} for _ in prompts_tokens]
    while not slots.idle():
      with self._turns:
        finished = slots.step()
      for done in finished:
        found[done.request.tag][done.index] = done.sample
        if on_sample is not None:
          on_sample(done.request.tag, done.index, done.sample)
      slots.compact()
    return [[group[index] for index in range(n)] for group in found]

  def compile_count(self) -> int:
    """Programs compiled so far."""
    return self._programs.compiles

  def _slots(
    self, prompts: Sequence[Sequence[int]], n: int, params: Params, step: int
  ) -> Slots:
    """Slots for all answers, or, where they are too many, `max_rows`.

    Then a lane gets fewer slots than n: its answers go one after another, and
    fewer slots wait for a lane's longest answer.
    """
    lanes, width = _power_of_two(len(prompts)), n
    if lanes * n > self._max_rows:
      width = min(n, max(1, n // 4, self._max_rows // lanes))
      lanes = max(1, self._max_rows // width)
    return Slots(
      self._programs,
      params,
      lanes=lanes,
      width=width,
      max_prompt=bucket(
        max(map(len, prompts)), self._max_prompt, SMALLEST_BUCKET
      ),
      max_new=self._max_new,
      version=step,
    )


def _power_of_two(number: int) -> int:
  return 1 << (number - 1).bit_length()
