"""A second head on the policy's trunk: how good is this answer?

The head reads the trunk's final hidden state at an answer's last token and
gives one number, its quality. It learns from comparisons (Bradley-Terry): the
blind referee's tiers within a group, and the honest answer of each repaired
pair against the exploit. A group whose best-paid answer has a lower quality
than a worse-paid one probably hides an exploit, so that the referee, who costs
a call a group, can be asked about the most suspicious groups first.

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

from varl_jax.models.sharding import constrain, use
from varl_jax.rl.batch import Batch

Params = Any
HiddenFn = Callable[
  [Params, Int[Array, "B L"], Int[Array, "B"]], Float[Array, "B L D"]
]

# Logical axes of the head, as of every other weight.
AXES: Final = {"kernel": ("embed",), "scale": ()}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class DiscriminatorState:
  """The head and its optimizer.

  Attributes:
    head: `kernel` [D] and `scale` [], float32.
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


def suspicion(
  quality: Sequence[float], scores: Sequence[float | None], *, epsilon: float
) -> float:
  """How much better than the best-paid answer a worse-paid one seems, nats.

  The largest quality among the answers paid at least `epsilon` less than the
  best-paid one, minus the largest quality among the best-paid. By Bradley and
  Terry its sigmoid is the chance that the worse-paid answer is the better one.

  Returns:
    Minus infinity where no exploit case is possible.
  """
  scored = [
    (s, q) for s, q in zip(scores, quality, strict=True) if s is not None
  ]
  if not scored:
    return -np.inf
  top = max(score for score, _ in scored)
  lower = [q for s, q in scored if s <= top - epsilon + 1e-9]
  if not lower:
    return -np.inf
  return max(lower) - max(q for s, q in scored if s >= top - 1e-9)


class Discriminator:
  """Trains and reads the head; holds no state of the run."""

  def __init__(
    self,
    *,
    hidden_fn: HiddenFn,
    learning_rate: float = 3e-3,
    decay: float = 1e-2,
    mesh: Mesh | None = None,
  ):
    """Sets up the compiled functions; nothing is compiled yet.

    Args:
      hidden_fn: (params, tokens [B, L], lengths [B]) -> [B, L, D], causal.
      learning_rate: of AdamW.
      decay: weight decay; the head has few comparisons to learn from.
      mesh: devices of the trunk, None for a single one.
    """
    self._hidden_fn = hidden_fn
    self._optimizer = optax.adamw(learning_rate, weight_decay=decay)
    self._mesh = mesh
    self._features = jax.jit(self._last_hidden)
    self._fit = jax.jit(self._update, donate_argnums=0)

  def init(self, width: int) -> DiscriminatorState:
    """A head that finds all answers equally good; `width` is D."""
    head = {
      "kernel": jnp.zeros(width, jnp.float32),
      "scale": jnp.zeros((), jnp.float32),
    }
    return DiscriminatorState(
      head=head,
      opt_state=self._optimizer.init(head),
      updates=jnp.zeros((), jnp.int32),
    )

  def features(self, params: Params, batch: Batch) -> Float[Array, "B D"]:
    """The trunk's final hidden state at each row's last token, float32."""
    with use(self._mesh):
      return self._features(params, batch.tokens, batch.lengths)

  def quality(
    self, state: DiscriminatorState, features: Float[Array, "B D"]
  ) -> np.ndarray:
    """Float32 [B]; only differences within a task mean something."""
    return np.asarray(_quality(state.head, features))

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
      The new state and `discriminator/loss` (nats a comparison, before the
      step), `discriminator/accuracy`, `discriminator/pairs`.
    """
    pairs = len(comparisons.better)
    if not pairs:
      return state, {"discriminator/pairs": 0.0}
    # Padded to a power of two: few shapes are compiled.
    room = 1 << (pairs - 1).bit_length()
    padded = [
      np.pad(part, (0, room - pairs))
      for part in (comparisons.better, comparisons.worse, comparisons.weight)
    ]
    state, (loss, right) = self._fit(state, features, *padded)
    return state, {
      "discriminator/loss": float(loss),
      "discriminator/accuracy": float(right),
      "discriminator/pairs": float(pairs),
    }

  def _last_hidden(
    self, params: Params, tokens: Array, lengths: Array
  ) -> Float[Array, "B D"]:
    hidden = self._hidden_fn(params, tokens, lengths)
    rows = jnp.arange(tokens.shape[0])
    last = hidden[rows, jnp.maximum(lengths - 1, 0)].astype(jnp.float32)
    return constrain(jax.lax.stop_gradient(last), "batch", "embed")

  def _update(
    self,
    state: DiscriminatorState,
    features: Array,
    better: Array,
    worse: Array,
    weight: Array,
  ) -> tuple[DiscriminatorState, tuple[Array, Array]]:
    def loss_of(head: Params) -> tuple[Array, Array]:
      quality = _quality(head, features)
      loss, count = bradley_terry(quality, better, worse, weight)
      right = jnp.sum(weight * (quality[better] > quality[worse])) / count
      return loss / count, right

    found, gradient = jax.value_and_grad(loss_of, has_aux=True)(state.head)
    changes, opt_state = self._optimizer.update(
      gradient, state.opt_state, state.head
    )
    head = optax.apply_updates(state.head, changes)
    new = DiscriminatorState(
      head=head, opt_state=opt_state, updates=state.updates + 1
    )
    return new, found


@jax.jit
def _quality(head: Params, features: Float[Array, "B D"]) -> Float[Array, "B"]:
  """exp(scale) kernel . x: a common factor learns the spread quickly."""
  flat = jnp.einsum(
    "bd,d->b", features, head["kernel"], precision=jax.lax.Precision.HIGHEST
  )
  return jnp.exp(head["scale"]) * flat
