"""One GRPO step: frozen old logprobs, then an AdamW update a mini-batch.

The stages of `Learner.update`:
1. cut the batch into mini-batches of whole groups, all of one shape;
2. compute the old logprobs of every mini-batch but the first at the incoming
   parameters; the first is at them anyway, so that its own are the old ones;
3. for each mini-batch add (loss sum, token count) and the gradient of the sum
   over its micro-batches, divide once by the count, clip, update.

Two functions are compiled for each padded shape, whatever the number of
mini-batches. With `train.length_bucket` the shapes are those of micro-batches
of like length, one after another; without it a mini-batch is one program over
micro-batches of one shape. Gradients are those of the float32 parameters; a
model that computes in another type casts inside `hidden_fn`.

With adapters (a collection `lora` beside `params`) only they are trained: the
state holds them alone, and the learner keeps the rest.

On a mesh the sums of a mini-batch run over all devices before the division, as
they do over micro-batches, and the state never lies whole on one device.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from varl_jax.config import ConfigError, TrainConfig
from varl_jax.models.sharding import constrain, place, use
from varl_jax.models.turns import Turns
from varl_jax.rl.batch import Batch, split_minibatches
from varl_jax.rl.logprobs import forbidden_mask, token_logprobs
from varl_jax.rl.losses import grpo_loss, importance_weights, ratio_sums
from varl_jax.rl.micro_batches import Buckets
from varl_jax.rl.placement import Placement, split_trained
from varl_jax.rl.update_sums import update_metrics

Params = Any
HiddenFn = Callable[
  [Params, Int[Array, "B L"], Int[Array, "B"]], Float[Array, "B L D"]
]
HeadFn = Callable[[Params], Float[Array, "V D"]]
Rows = dict[str, Any]
# What a state holds beside the weights: moments, number of updates.
Rest = tuple[optax.OptState, Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainState:
  """What training carries from step to step; `Learner.update` consumes it.

  Attributes:
    params: float32 pytree of what is trained.
    opt_state: of the optax chain.
    updates: int32 [], optimizer updates applied so far.
  """

  params: Params
  opt_state: optax.OptState
  updates: Int[Array, ""]


def make_optimizer(config: TrainConfig) -> optax.GradientTransformation:
  """AdamW for clipped gradients; warm-up update k has lr (k + 1) / W.

  The clip is a factor that the learner multiplies them by; its place in the
  chain is kept, and with it the form of the state.
  """
  warmup = max(config.warmup_updates, 1)

  def schedule(count):
    return config.learning_rate * jnp.minimum(1.0, (count + 1) / warmup)

  return optax.chain(
    optax.identity(),
    optax.adamw(schedule, weight_decay=config.weight_decay),
  )


class Learner:
  """Trains parameters on packed batches; holds no state of the run.

  Weights that are not trained are no state: `init` hands them over.
  """

  def __init__(
    self,
    *,
    hidden_fn: HiddenFn,
    head_fn: HeadFn,
    vocab_size: int,
    config: TrainConfig,
    forbidden_ids: Sequence[int] = (),
    old_logprobs: Literal["recomputed", "sampler"] = "recomputed",
    importance_cap: float | None = None,
    head_chunk: int = 0,
    mesh: Mesh | None = None,
    axes: Params | None = None,
    owns_params: bool = False,
    longest: int = 0,
    widest: int = 0,
    turns: Turns | None = None,
  ):
    """Sets up the compiled functions; nothing is compiled yet.

    Args:
      hidden_fn: (params, tokens [B, L], lengths [B]) -> [B, L, D], causal.
      head_fn: params -> [V, D].
      vocab_size: V.
      config: learning rate, clip, temperature, sizes.
      forbidden_ids: ids the sampler never draws.
      old_logprobs: `recomputed` by this model before the first update, or the
        `sampler`'s recorded ones (one forward pass less).
      importance_cap: with recomputed ones, bound of the truncated importance
        weight a token; None switches the correction off.
      head_chunk: see `logprobs.token_logprobs`.
      mesh: devices to train on, None for a single one.
      axes: on a mesh, the logical axes of the parameters.
      owns_params: the state takes the arrays given to `init` over, which are
        gone after the first update; without it the state has a copy.
      longest: most tokens of a row, asked for by `train.length_bucket`.
      widest: the same of a response.
      turns: shared with others who use the devices; one is a mini-batch.

    Raises:
      ValueError: a cap with the sampler's logprobs, which need no correction,
        a mesh without axes, or buckets without their limits.
      ConfigError: micro-batches that the mesh cannot share out, or buckets
        without micro-batches.
    """
    if (mesh is None) != (axes is None):
      raise ValueError("mesh and axes are given together.")
    if importance_cap is not None and old_logprobs == "sampler":
      raise ValueError(
        "importance_cap corrects recomputed old logprobs; with the sampler's"
        " own it has nothing to correct."
      )
    self._placement = None
    if mesh is not None:
      self._placement = Placement(mesh=mesh, axes=axes)
      if config.micro_batch % self._placement.row_parts:
        raise ConfigError(
          f"train.micro_batch ({config.micro_batch}) is a multiple of mesh.data"
          f" x mesh.fsdp ({self._placement.row_parts}), or 0."
        )
    self._turns = turns or Turns()
    self._buckets = _buckets(config, longest, widest)
    self._mesh = mesh
    self._copies = not owns_params
    self._kept: Params = {}
    self._hidden_fn = hidden_fn
    self._head_fn = head_fn
    self._config = config
    self._forbidden = forbidden_mask(forbidden_ids, vocab_size)
    self._recompute = old_logprobs == "recomputed"
    self._cap = importance_cap
    self._head_chunk = head_chunk
    self._optimizer = make_optimizer(config)
    self._old = jax.jit(self._old_logprobs)
    self._step = jax.jit(self._minibatch_step, donate_argnums=0)
    # The same in programs of their own, each of which writes the state where
    # it lies: one program keeps old and new weights or moments side by side.
    self._grad = jax.jit(self._gradient_of)
    self._plus = jax.jit(_added, donate_argnums=0)
    self._norm = jax.jit(self._norm_of)
    self._check = jax.jit(self._is_sound)
    self._move = jax.jit(self._moved, donate_argnums=0)
    self._roll = jax.jit(self._rolled, donate_argnums=0)

  def init(self, params: Params) -> TrainState:
    """A fresh state with its own copy of `params` (updates donate theirs).

    Args:
      params: with a collection `lora`, it alone goes into the state; the rest
        stays with the learner and is not copied.
    """
    trained = self.hold(params)
    places: Any = (None, None)
    if self._placement is not None:
      where = self._where(jax.eval_shape(self._fresh, trained))
      places = where.opt_state, where.updates
    if self._copies:
      trained = jax.tree.map(jnp.copy, trained)
    else:
      trained = jax.tree.map(jnp.asarray, trained)
    # Not through jit, whose outputs are never its inputs.
    opt_state, updates = jax.jit(self._unstarted, out_shardings=places)(trained)
    return TrainState(params=trained, opt_state=opt_state, updates=updates)

  def hold(self, params: Params) -> Params:
    """The trained part of `params` where it lies, without a state or a copy.

    For those who only sample; the rest stays with the learner.
    """
    trained, self._kept = split_trained(params)
    if self._placement is None:
      return trained
    of_params = self._placement.of_params
    self._kept = place(self._kept, of_params(self._kept))
    return place(trained, of_params(trained))

  def whole(self, params: Params) -> Params:
    """The tree a model takes: a state's parameters and those not trained."""
    return _merge(params, self._kept)

  def update(
    self, state: TrainState, batch: Batch
  ) -> tuple[TrainState, dict[str, float]]:
    """One GRPO step.

    Args:
      state: consumed; its arrays are gone afterwards.
      batch: rows of whole groups.

    Returns:
      The new state and the step's metrics, `train/...`. `train/skipped` counts
      mini-batches without a trained token, `train/nonfinite` those whose
      gradient was not finite; neither changes the state.
    """
    config = self._config
    minibatches = split_minibatches(
      batch,
      groups=config.minibatch_tasks,
      rows=config.minibatch_tasks * config.samples,
      multiple=config.micro_batch or self._row_parts,
    )
    parts = [self._parts(m) for m in minibatches if m.mask.any()]
    sums = []
    with use(self._mesh):
      if self._recompute:
        for pieces in itertools.chain.from_iterable(parts[1:]):
          with self._turns:
            old = self._old(state.params, self._kept, pieces)
            pieces["old"] = jax.block_until_ready(old)
      for number, part in enumerate(parts):
        own = np.bool_(self._recompute and number == 0)
        with self._turns:
          state, found = self._train_on(state, part, own)
          sums.append(jax.device_get(found))
    metrics = update_metrics(sums, frozen_once=self._recompute)
    metrics["train/skipped"] = float(len(minibatches) - len(parts))
    return state, metrics

  def _parts(self, minibatch: Batch) -> list[Rows]:
    """The pieces of a mini-batch that are programs of their own."""
    if self._buckets is None:
      return [self._pieces(minibatch)]
    return [self._pieces(micro) for micro in self._buckets.cut(minibatch)]

  def _train_on(
    self, state: TrainState, parts: list[Rows], own: np.bool_
  ) -> tuple[TrainState, Rows]:
    """One optimizer update; with `own` the forward's logprobs are the old ones.

    Returns:
      The new state, and what `update_metrics` takes of the mini-batch.
    """
    total, sums = None, []
    for pieces in parts:
      gradient, found = self._grad(state.params, self._kept, pieces, own)
      total = gradient if total is None else self._plus(total, gradient)
      sums.append(found)
    assert total is not None
    norm, scale = self._norm(total, [found["tokens_sum"] for found in sums])
    rest = state.opt_state, state.updates
    sound = self._check(state.params, rest, total, scale)
    params = self._move(state.params, rest, total, scale, sound)
    opt_state, updates = self._roll(rest, total, scale, sound)
    state = TrainState(params=params, opt_state=opt_state, updates=updates)
    return state, {"sums": sums, "grad_norm": norm, "sound": sound}

  def lower(
    self, params: Params, *, rows: int, length: int, width: int
  ) -> jax.stages.Lowered:
    """One mini-batch's update, for a compile ahead of time on a mesh.

    Args:
      params: shapes and types of all parameters; `init` is not needed.
      rows: of the mini-batch.
      length: tokens a row, prompt and response.
      width: tokens a response.
    """
    assert self._placement is not None
    trained, kept = split_trained(params)
    blank = np.broadcast_to(np.int32(0), (rows, length))
    answer = np.broadcast_to(np.float32(0), (rows, width))
    batch = Batch(
      tokens=blank,
      prompt_lengths=blank[:, 0],
      lengths=blank[:, 0],
      targets=answer.astype(np.int32),
      mask=answer.astype(bool),
      logprobs=answer,
      advantages=answer[:, 0],
      group_ids=blank[:, 0],
    )
    pieces = self._cut(batch)
    state = jax.eval_shape(self._fresh, trained)
    like = jax.tree.map(
      lambda leaf, where: jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=where
      ),
      (state, kept, pieces),
      (
        self._where(state),
        self._placement.of_params(kept),
        self._placement.of_rows(pieces),
      ),
    )
    with use(self._mesh):
      return self._step.lower(*like, np.bool_(False))

  def logprobs(self, params: Params, batch: Batch) -> np.ndarray:
    """Float32 [B, R] in nats under `params`, 0 off the mask."""
    trained, kept = split_trained(params)
    whole = self._pieces(batch, micro=0)
    with use(self._mesh):
      found = np.asarray(self._old(trained, kept or self._kept, whole))[0]
    return np.where(batch.mask, found, np.float32(0))

  @property
  def _row_parts(self) -> int:
    return self._placement.row_parts if self._placement else 1

  def _unstarted(self, params: Params) -> tuple[optax.OptState, Array]:
    return self._optimizer.init(params), jnp.zeros((), jnp.int32)

  def _fresh(self, params: Params) -> TrainState:
    opt_state, updates = self._unstarted(params)
    return TrainState(params=params, opt_state=opt_state, updates=updates)

  def _where(self, state: TrainState) -> TrainState:
    """The sharding of each leaf of a state."""
    assert self._placement is not None
    everywhere: Any = self._placement.everywhere
    return TrainState(
      params=self._placement.of_params(state.params),
      opt_state=self._placement.of_optimizer(
        self._optimizer, state.opt_state, state.params
      ),
      updates=everywhere,
    )

  def _pieces(self, batch: Batch, micro: int | None = None) -> Rows:
    """`_cut`, on the mesh if there is one."""
    pieces = self._cut(batch, micro)
    if self._placement is None:
      return pieces
    return place(pieces, self._placement.of_rows(pieces))

  def _cut(self, batch: Batch, micro: int | None = None) -> Rows:
    """The batch's arrays as [M, rows of a micro-batch, ...]."""
    micro = self._config.micro_batch if micro is None else micro
    rows = {
      "tokens": batch.tokens,
      "prompt_lengths": batch.prompt_lengths,
      "lengths": batch.lengths,
      "targets": batch.targets,
      "mask": batch.mask,
      "sampler": batch.logprobs,
      "old": batch.logprobs,
      "advantages": batch.advantages,
    }
    size = micro or len(batch.tokens)
    return {k: v.reshape(-1, size, *v.shape[1:]) for k, v in rows.items()}

  def _model(self, params: Params, rows: Rows) -> tuple[Array, Array]:
    """Logprobs and entropies [B, R] of one micro-batch."""
    hidden = self._hidden_fn(params, rows["tokens"], rows["lengths"])
    width = rows["targets"].shape[1]
    # The state at position t - 1 predicts token t; the first response token
    # sits at t = prompt length.
    where = rows["prompt_lengths"][:, None] - 1 + jnp.arange(width)
    where = jnp.minimum(where, hidden.shape[1] - 1)
    hidden = jnp.take_along_axis(hidden, where[..., None], axis=1)
    hidden = jnp.where(rows["mask"][..., None], hidden, 0)
    hidden = constrain(hidden, "batch", None, None)
    return token_logprobs(
      hidden,
      self._head_fn(params),
      rows["targets"],
      forbidden=jnp.asarray(self._forbidden),
      temperature=self._config.temperature,
      chunk=self._head_chunk,
    )

  def _old_logprobs(self, params: Params, kept: Params, pieces: Rows) -> Array:
    def one(rows: Rows) -> Array:
      return self._model(_merge(params, kept), rows)[0]

    if len(pieces["tokens"]) == 1:
      found = one(_only(pieces))[None]
    else:
      found = jax.lax.map(one, pieces)
    return constrain(found, None, "batch", None)

  def _loss(
    self, params: Params, kept: Params, rows: Rows, own: Array
  ) -> tuple[Array, Rows]:
    """The micro-batch's loss sum, and all its sums by name."""
    found, entropy = self._model(_merge(params, kept), rows)
    old = jnp.where(own, jax.lax.stop_gradient(found), rows["old"])
    args = (old, rows["advantages"], rows["mask"])
    clip = self._config.clip_ratio
    weights = None
    if self._cap is not None:
      weights = importance_weights(
        old, rows["sampler"], rows["mask"], cap=self._cap
      )
    loss, tokens = grpo_loss(found, *args, clip_ratio=clip, weights=weights)
    weighed = {}
    if weights is not None and self._cap is not None:
      capped = (weights >= self._cap) & rows["mask"]
      weighed["weight_sum"] = jnp.sum(weights)
      weighed["capped_sum"] = jnp.sum(capped, dtype=jnp.float32)
    frozen = old if self._recompute else found
    gap = jnp.where(rows["mask"], jnp.abs(frozen - rows["sampler"]), 0.0)
    sums = {
      "loss_sum": loss,
      "tokens_sum": tokens,
      "entropy_sum": jnp.sum(jnp.where(rows["mask"], entropy, 0.0)),
      "gap_sum": jnp.sum(gap),
      "gap_max": jnp.max(gap),
      **weighed,
      **ratio_sums(found, *args, clip_ratio=clip),
    }
    return loss, jax.lax.stop_gradient(sums)

  def _gradient_of(
    self, params: Params, kept: Params, pieces: Rows, own: Array
  ) -> tuple[Params, Rows]:
    """Of the loss sum over M micro-batches, and their sums, [M] each."""

    def gradient_fn(rows: Rows) -> tuple[Params, Rows]:
      slope = jax.grad(self._loss, has_aux=True)
      gradient, sums = slope(params, kept, rows, own)
      return self._pin(gradient), sums

    if len(pieces["tokens"]) > 1:
      zero = jax.tree.map(jnp.zeros_like, params)
      return _accumulate(gradient_fn, zero, pieces)
    gradient, sums = gradient_fn(_only(pieces))
    return gradient, {name: value[None] for name, value in sums.items()}

  def _minibatch_step(
    self, state: TrainState, kept: Params, pieces: Rows, own: Array
  ) -> tuple[TrainState, Rows]:
    gradient, sums = self._gradient_of(state.params, kept, pieces, own)
    norm, scale = self._norm_of(gradient, [sums["tokens_sum"]])
    rest = state.opt_state, state.updates
    sound = self._is_sound(state.params, rest, gradient, scale)
    params = self._moved(state.params, rest, gradient, scale, sound)
    opt_state, updates = self._rolled(rest, gradient, scale, sound)
    new = TrainState(params=params, opt_state=opt_state, updates=updates)
    return new, {"sums": [sums], "grad_norm": norm, "sound": sound}

  def _norm_of(
    self, gradient: Params, counts: list[Array]
  ) -> tuple[Array, Array]:
    """Norm of a gradient sum over so many tokens, its factor with the clip."""
    count = jnp.maximum(sum(part.sum() for part in counts), 1.0)
    norm = optax.tree.norm(gradient) / count
    limit = self._config.max_grad_norm
    clip = jnp.where(norm < limit, 1.0, limit / norm)
    return norm, jnp.where(jnp.isfinite(norm), clip / count, jnp.nan)

  def _changes(
    self, params: Params, rest: Rest, gradient: Params, scale: Array
  ) -> tuple[Params, optax.OptState]:
    gradient = jax.tree.map(lambda g: g * scale, gradient)
    return self._optimizer.update(gradient, rest[0], params)

  def _is_sound(
    self, params: Params, rest: Rest, gradient: Params, scale: Array
  ) -> Array:
    """Whether the step may be taken.

    Finite gradients can still make infinite steps (an infinite rate, say).
    """
    changes = self._changes(params, rest, gradient, scale)[0]
    # Squared, so that a length that overflows counts as infinite.
    tops = [jnp.max(jnp.abs(x)) ** 2 for x in jax.tree.leaves(changes)]
    return jnp.isfinite(scale) & jnp.isfinite(sum(tops))

  def _moved(
    self,
    params: Params,
    rest: Rest,
    gradient: Params,
    scale: Array,
    sound: Array,
  ) -> Params:
    """The weights after the step, or as they were."""
    changes = self._changes(params, rest, gradient, scale)[0]
    return self._pin(
      _chosen(sound, optax.apply_updates(params, changes), params)
    )

  def _rolled(
    self, rest: Rest, gradient: Params, scale: Array, sound: Array
  ) -> Rest:
    """Moments and the count of updates after the step, or as they were."""
    # The changes, which alone depend on the weights, are not asked for.
    opt_state = self._changes(gradient, rest, gradient, scale)[1]
    new = _chosen(sound, (opt_state, rest[1] + 1), rest)
    if self._placement is None:
      return new
    where = self._placement.of_optimizer(self._optimizer, new[0], gradient)
    return jax.lax.with_sharding_constraint(
      new, (where, self._placement.everywhere)
    )

  def _pin(self, params: Params) -> Params:
    if self._placement is None:
      return params
    where = self._placement.of_params(params)
    return jax.lax.with_sharding_constraint(params, where)


def _buckets(config: TrainConfig, longest: int, widest: int) -> Buckets | None:
  if not config.length_bucket:
    return None
  if not config.micro_batch:
    raise ConfigError(
      "train.length_bucket needs train.micro_batch: it says how many rows of"
      " like length go together."
    )
  if not (longest and widest):
    raise ValueError("Buckets of lengths take longest and widest.")
  return Buckets(
    rows=config.micro_batch,
    shortest=config.length_bucket,
    longest=longest,
    widest=widest,
  )


def _merge(params: Params, kept: Params) -> Params:
  return {**kept, **params} if kept else params


def _only(pieces: Rows) -> Rows:
  return {name: value[0] for name, value in pieces.items()}


def _chosen(first: Array, one: Any, other: Any) -> Any:
  return jax.tree.map(lambda a, b: jnp.where(first, a, b), one, other)


def _added(total: Params, more: Params) -> Params:
  return jax.tree.map(jnp.add, total, more)


def _accumulate(
  gradient_fn: Callable[[Rows], tuple[Params, Rows]],
  total: Params,
  pieces: Rows,
) -> tuple[Params, Rows]:
  """`total` with the gradients of M micro-batches; their sums, [M] each."""

  def add(total: Params, rows: Rows) -> tuple[Params, Rows]:
    gradient, sums = gradient_fn(rows)
    return _added(total, gradient), sums

  return jax.lax.scan(add, total, pieces)
