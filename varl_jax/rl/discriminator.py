"""A second head on the policy's trunk: how good is this answer?

The head reads the mean of the trunk's final hidden states over an answer's
tokens and gives one number, its quality. It learns from comparisons (Bradley-
Terry): the blind referee's tiers within a group, and the better answer of each
repaired pair against the exploit. A group whose best-paid answer has a lower
quality than a worse-paid one probably hides an exploit, so that the referee,
who costs a call a group, can be asked about the most suspicious groups first.

Not in the paper; off in its arms. The trunk gets no gradient from this head,
so that switching it on leaves the policy's training as it is.

Letters: B rows, L tokens, D width, P pairs, G groups.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from varl_jax.models.sharding import constrain, place, use
from varl_jax.rl.batch import Batch
from varl_jax.rl.placement import Placement

Params = Any
HiddenFn = Callable[
  [Params, Int[Array, "B L"], Int[Array, "B"]], Float[Array, "B L D"]
]

# Logical axes of the head, as of every other weight.
AXES: Final = {"kernel": ("embed",)}
# Keeps an answer without a token from being divided by its own nothing.
TINY: Final = 1e-6


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class DiscriminatorState:
  """The head and its optimizer.

  Attributes:
    head: `kernel` [D], float32.
    opt_state: of the optax chain.
    updates: int32 [], updates applied so far.
  """

  head: Params
  opt_state: optax.OptState
  updates: Int[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparisons:
  """Which rows are better than which.

  Attributes:
    better: int [P], rows.
    worse: int [P], rows of the same tasks.
    weight: float [P], 1 / pairs of the group, so that every group counts once.
  """

  better: np.ndarray
  worse: np.ndarray
  weight: np.ndarray

  def plus(
    self, pairs: Sequence[tuple[int, int]], *, weight: float
  ) -> "Comparisons":
    """With more pairs (better, worse), each of the given weight."""
    if not pairs or not weight:
      return self
    better, worse = np.array(pairs, np.int32).T
    added = np.full(len(pairs), weight, np.float32)
    return Comparisons(
      better=np.concatenate([self.better, better]),
      worse=np.concatenate([self.worse, worse]),
      weight=np.concatenate([self.weight, added]),
    )


def tier_comparisons(
  tiers: Sequence[int | None], group_ids: Sequence[int]
) -> Comparisons:
  """All pairs of a group whose tiers differ.

  Args:
    tiers: a row's tier, 0 the best; None for a row that was not ranked.
    group_ids: a row's group.

  Raises:
    ValueError: lengths that differ.
  """
  if len(tiers) != len(group_ids):
    raise ValueError(f"{len(tiers)} tiers for {len(group_ids)} rows.")
  members: dict[int, list[tuple[int, int]]] = {}
  for row, (tier, group) in enumerate(zip(tiers, group_ids, strict=True)):
    if tier is not None:
      members.setdefault(group, []).append((row, tier))
  better, worse, weight = [], [], []
  for rows in members.values():
    pairs = [
      (high, low)
      for high, upper in rows
      for low, lower in rows
      if upper < lower
    ]
    better += [high for high, _ in pairs]
    worse += [low for _, low in pairs]
    weight += [1 / len(pairs) for _ in pairs]
  return Comparisons(
    better=np.array(better, np.int32),
    worse=np.array(worse, np.int32),
    weight=np.array(weight, np.float32),
  )


def bradley_terry(
  quality: Float[Array, "B"],
  better: Int[Array, "P"],
  worse: Int[Array, "P"],
  weight: Float[Array, "P"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
  """Sum of -w log sigmoid(quality of the better - of the worse), sum of w."""
  lead = quality[better] - quality[worse]
  return jnp.sum(weight * jax.nn.softplus(-lead)), jnp.sum(weight)


def pair_metrics(
  quality: Float[np.ndarray, "B"], pairs: Comparisons
) -> dict[str, float]:
  """How well qualities foretell comparisons; {} without any.

  Returns:
    `discriminator/accuracy`, the weighted share of the pairs whose better one
    has the higher quality, equal ones counted by half, and
    `discriminator/brier`, the mean square of what its predicted chance lacks to
    1: 0.25 for a head that knows nothing.
  """
  if not len(pairs.better):
    return {}
  lead = quality[pairs.better] - quality[pairs.worse]
  missing = 1 / (1 + np.exp(np.clip(lead, -60, 60)))
  right = (np.sign(lead) + 1) / 2
  total = pairs.weight.sum()
  return {
    "discriminator/accuracy": float((pairs.weight * right).sum() / total),
    "discriminator/brier": float((pairs.weight * missing**2).sum() / total),
  }


def suspicion(
  quality: Sequence[float], scores: Sequence[float | None], *, epsilon: float
) -> float | None:
  """How much better than the best-paid answer a worse-paid one seems, nats.

  The largest quality among the answers paid at least `epsilon` less than the
  best-paid one, minus the largest quality among the best-paid. By Bradley and
  Terry its sigmoid is the chance that the worse-paid answer is the better one.

  Args:
    quality: nats, one an answer.
    scores: of the same answers, None for those that take no part.
    epsilon: least gap of scores of an exploit case.

  Returns:
    None where no exploit case is possible.
  """
  scored = [
    (s, q) for s, q in zip(scores, quality, strict=True) if s is not None
  ]
  if not scored:
    return None
  top = max(score for score, _ in scored)
  lower = [q for s, q in scored if s <= top - epsilon + 1e-9]
  if not lower:
    return None
  return max(lower) - max(q for s, q in scored if s >= top - 1e-9)


class Discriminator:
  """Trains and reads the head; holds no state of the run."""

  def __init__(
    self,
    *,
    hidden_fn: HiddenFn,
    learning_rate: float = 3.0,
    decay: float = 1e-2,
    mesh: Mesh | None = None,
  ):
    """Sets up the compiled functions; nothing is compiled yet.

    Args:
      hidden_fn: (params, tokens [B, L], lengths [B]) -> [B, L, D], causal.
      learning_rate: of AdamW; about the most nats by which one update moves a
        quality, whatever D is.
      decay: weight decay.
      mesh: devices of the trunk, None for a single one.
    """
    self._hidden_fn = hidden_fn
    self._optimizer = optax.adamw(learning_rate, weight_decay=decay)
    self._mesh = mesh
    self._placement = None
    if mesh is not None:
      self._placement = Placement(mesh=mesh, axes=AXES)
    self._features = jax.jit(self._pooled)
    self._read = jax.jit(self._qualities)
    self._fit = jax.jit(self._update, donate_argnums=0)

  def init(self, width: int) -> DiscriminatorState:
    """A head that finds all answers equally good; `width` is D."""

    def fresh() -> DiscriminatorState:
      head = {"kernel": jnp.zeros(width, jnp.float32)}
      return DiscriminatorState(
        head=head,
        opt_state=self._optimizer.init(head),
        updates=jnp.zeros((), jnp.int32),
      )

    return jax.jit(fresh, out_shardings=self._where(jax.eval_shape(fresh)))()

  def features(
    self, params: Params, batch: Batch, *, rows: int = 0
  ) -> Float[Array, "B D"]:
    """The trunk's mean final hidden state over each answer, of unit scale.

    Args:
      params: of the trunk, not changed.
      batch: rows of any groups.
      rows: that go through the trunk at a time, 0 for all.

    Returns:
      Float32; zero for an answer without a token.
    """
    size = rows or len(batch.tokens)
    size += -size % (self._placement.row_parts if self._placement else 1)
    real = np.arange(len(batch.tokens))
    filled = batch.take(
      np.pad(real, (0, -len(real) % size), constant_values=-1)
    )
    pieces = {
      name: value.reshape(-1, size, *value.shape[1:])
      for name, value in (
        ("tokens", filled.tokens),
        ("prompt_lengths", filled.prompt_lengths),
        ("lengths", filled.lengths),
      )
    }
    if self._placement is not None:
      pieces = place(pieces, self._placement.of_rows(pieces))
    with use(self._mesh):
      return self._features(params, pieces)[: len(real)]

  def quality(
    self, state: DiscriminatorState, features: Float[Array, "B D"]
  ) -> np.ndarray:
    """Float32 [B] in nats; only differences within a task mean something."""
    with use(self._mesh):
      return np.asarray(self._read(state.head, features))

  def update(
    self,
    state: DiscriminatorState,
    features: Float[Array, "B D"],
    comparisons: Comparisons,
  ) -> tuple[DiscriminatorState, dict[str, float]]:
    """One step on the comparisons; without any the state is given back.

    Args:
      state: consumed unless there are no comparisons.
      features: of `features`.
      comparisons: rows of it.

    Returns:
      The new state, `discriminator/pairs`, and `discriminator/loss`, nats a
      comparison before the step. A gradient that is not finite leaves the state
      as it was, and no loss.
    """
    pairs = len(comparisons.better)
    measured = {"discriminator/pairs": float(pairs)}
    if not pairs:
      return state, measured
    # Padded to a power of two: few shapes are compiled.
    room = 1 << (pairs - 1).bit_length()
    padded = [
      np.pad(part, (0, room - pairs))
      for part in (comparisons.better, comparisons.worse, comparisons.weight)
    ]
    with use(self._mesh):
      state, loss = self._fit(state, features, *padded)
    if np.isfinite(loss):
      measured["discriminator/loss"] = float(loss)
    return state, measured

  def _where(self, state: DiscriminatorState) -> Any:
    """The sharding of each leaf of a state, None without a mesh."""
    if self._placement is None:
      return None
    everywhere: Any = self._placement.everywhere
    return DiscriminatorState(
      head=self._placement.of_params(state.head),
      opt_state=self._placement.of_optimizer(
        self._optimizer, state.opt_state, state.head
      ),
      updates=everywhere,
    )

  def _pooled(self, params: Params, pieces: dict[str, Array]) -> Array:
    def one(rows: dict[str, Array]) -> Float[Array, "B D"]:
      hidden = self._hidden_fn(params, rows["tokens"], rows["lengths"])
      at = jnp.arange(hidden.shape[1])
      inside = (at >= rows["prompt_lengths"][:, None]) & (
        at < rows["lengths"][:, None]
      )
      total = jnp.einsum(
        "bld,bl->bd",
        hidden,
        inside.astype(hidden.dtype),
        preferred_element_type=jnp.float32,
      )
      return constrain(jax.lax.stop_gradient(total), "batch", None)

    found = jax.lax.map(one, pieces)
    found = found.reshape(-1, found.shape[-1])
    # The mean's length is that of the sum: both are scaled to 1.
    scale = jnp.sqrt(jnp.mean(found**2, axis=-1, keepdims=True))
    return constrain(found / jnp.maximum(scale, TINY), None, None)

  def _qualities(
    self, head: Params, features: Float[Array, "B D"]
  ) -> Float[Array, "B"]:
    """kernel . x / D, so that the width does not matter to the optimizer."""
    flat = jnp.einsum(
      "bd,d->b", features, head["kernel"], precision=jax.lax.Precision.HIGHEST
    )
    return constrain(flat / features.shape[1], None)

  def _update(
    self,
    state: DiscriminatorState,
    features: Array,
    better: Array,
    worse: Array,
    weight: Array,
  ) -> tuple[DiscriminatorState, Array]:
    def loss_of(head: Params) -> Array:
      quality = self._qualities(head, features)
      loss, count = bradley_terry(quality, better, worse, weight)
      return loss / count

    loss, gradient = jax.value_and_grad(loss_of)(state.head)
    changes, opt_state = self._optimizer.update(
      gradient, state.opt_state, state.head
    )
    new = DiscriminatorState(
      head=optax.apply_updates(state.head, changes),
      opt_state=opt_state,
      updates=state.updates + 1,
    )
    sound = jnp.isfinite(optax.tree.norm(gradient)) & jnp.isfinite(loss)
    new = jax.tree.map(lambda a, b: jnp.where(sound, a, b), new, state)
    if self._placement is not None:
      new = jax.lax.with_sharding_constraint(new, self._where(new))
    return new, loss
