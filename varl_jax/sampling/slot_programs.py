"""What the slot sampler runs on devices.

A lane holds one prompt and has n slots, each for one answer to it. All arrays
of a state are [lanes, slots, ...]; the programs take a state and give it back
in place. Letters: G lanes, n slots a lane, c prompts prefilled together, T
tokens of a segment, D width, V vocabulary.
"""

import functools
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from varl_jax.models.layers import Params
from varl_jax.models.registry import CausalModel
from varl_jax.models.sharding import constrain
from varl_jax.rl.logprobs import forbidden_mask
from varl_jax.sampling.draws import Rows, draw, ends, row_keys, rows_axes

STOPS: Final = 4  # most stop ids of a request's own
SEGMENT: Final = 16  # tokens between two visits of the host


class State(NamedTuple):
  """Everything that stays on the devices between segments.

  Attributes:
    cache: the model's.
    first: [G, D], what the first token of a lane's answers is drawn from.
    hidden: [G, n, D], what the next token is drawn from.
    rows: how it is drawn.
  """

  cache: Any
  first: Float[Array, "G D"]
  hidden: Float[Array, "G n D"]
  rows: Rows


class Begin(NamedTuple):
  """Answers that begin.

  Attributes:
    mask: slots that begin an answer to their lane's prompt.
    words: seed, step, task and sample of the answer.
    rows: the rest of `Rows`; its keys do not count.
  """

  mask: Bool[Array, "G n"]
  words: UInt32[Array, "G n 4"]
  rows: Rows


class Report(NamedTuple):
  """What a segment drew; whole on every device.

  Attributes:
    tokens: [T, G, n], of which the first `counts` of a slot are real.
    logprobs: of the tokens.
    counts: tokens drawn.
    live: slots whose answer goes on.
  """

  tokens: Int[Array, "T G n"]
  logprobs: Float[Array, "T G n"]
  counts: Int[Array, "G n"]
  live: Bool[Array, "G n"]


class SlotPrograms:
  """Programs of one model; each compiles once a shape.

  Attributes:
    model: the architecture.
    segment: T, most tokens a row draws between two visits of the host.
    temperature: of all answers, None where each has its own.
    stop_ids: ids that end an answer.
    compiles: programs traced so far.
  """

  def __init__(
    self,
    *,
    model: CausalModel,
    stop_ids: Iterable[int],
    forbidden_ids: Iterable[int] = (),
    segment: int = SEGMENT,
    temperature: float | None = None,
  ):
    """Prepares the programs.

    Args:
      model: the architecture; parameters come with each call.
      stop_ids: ids that end an answer.
      forbidden_ids: ids that are never drawn.
      segment: T, at least 1.
      temperature: of all answers, see `draws.draw`; None where they differ.
    """
    vocab = model.config.vocab_size
    self.model = model
    self.segment = segment
    self.temperature = temperature
    self.compiles = 0
    self.stop_ids = frozenset(stop_ids)
    self._stop = jnp.asarray(forbidden_mask(sorted(self.stop_ids), vocab))
    self._forbidden = jnp.asarray(forbidden_mask(sorted(forbidden_ids), vocab))
    self.empty = self._jit(self._empty, static_argnums=(1, 2, 3, 4))
    self.admit = self._jit(self._admit, donate_argnums=1)
    self.begin = self._jit(self._begin, donate_argnums=0)
    self.decode = self._jit(self._decode, donate_argnums=1)
    self.pick = self._jit(self._pick)

  def _jit(self, function: Any, **options: Any) -> Any:
    @functools.wraps(function)
    def counted(*args: Any) -> Any:
      self.compiles += 1  # runs when traced, not when called
      return function(*args)

    return jax.jit(counted, **options)

  def axes(self) -> State:
    """Logical axes of a state."""
    hidden: Any = ("batch", "batch", None)
    first: Any = ("batch", None)
    return State(self.model.cache_axes(), first, hidden, rows_axes())

  def _pinned(self, state: State) -> State:
    return jax.tree.map(
      lambda names, leaf: constrain(leaf, *names),
      self.axes(),
      state,
      is_leaf=_is_names,
    )

  def _empty(
    self, params: Params, lanes: int, slots: int, prompt: int, answer: int
  ) -> State:
    """A state of `lanes` x `slots` without an answer.

    Args:
      params: the parameters; their shapes count.
      lanes: G.
      slots: n.
      prompt: most tokens of a prompt.
      answer: most tokens of an answer.
    """
    shapes = jax.eval_shape(
      self.model.prefill,
      params,
      jax.ShapeDtypeStruct((lanes, prompt), jnp.int32),
      jax.ShapeDtypeStruct((lanes,), jnp.int32),
    )
    first, state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    cache = self.model.start(
      state,
      jnp.zeros(lanes, jnp.int32),
      samples=slots,
      slots=answer + self.segment,
      recent=self.segment,
    )
    live = jnp.zeros((lanes, slots), bool)
    cache = cache._replace(filled=cache.filled._replace(live=live))
    flat = jnp.zeros((lanes, slots), jnp.int32)
    rows = Rows(
      keys=row_keys(jnp.zeros((lanes, slots, 4), jnp.uint32)),
      position=flat,
      left=flat,
      early=flat,
      temperature=flat.astype(jnp.float32),
      stops=jnp.zeros((lanes, slots, STOPS), jnp.int32),
    )
    hidden = jnp.zeros((lanes, slots, first.shape[-1]), first.dtype)
    return self._pinned(State(cache, first, hidden, rows))

  def _admit(
    self,
    params: Params,
    state: State,
    tokens: Int[Array, "c P"],
    lengths: Int[Array, " c"],
    lanes: Int[Array, " c"],
  ) -> State:
    """Prefills prompts into lanes; a lane that is not there takes none."""
    hidden, prompt = self.model.prefill(params, tokens, jnp.maximum(lengths, 1))
    return self._pinned(
      state._replace(
        cache=self.model.admit(state.cache, prompt, lengths, lanes),
        first=state.first.at[lanes].set(hidden, mode="drop"),
      )
    )

  def _begin(self, state: State, begin: Begin) -> State:
    """Begins answers."""
    mask = begin.mask
    fresh = begin.rows._replace(keys=row_keys(begin.words))
    return self._pinned(
      State(
        cache=self.model.begin(state.cache, mask),
        first=state.first,
        hidden=jnp.where(mask[..., None], state.first[:, None], state.hidden),
        rows=jax.tree.map(functools.partial(_where, mask), fresh, state.rows),
      )
    )

  def _decode(
    self,
    params: Params,
    state: State,
    most: Int[Array, ""],
    enough: Int[Array, ""],
    allowed: UInt32[Array, "G n W"] | None,
  ) -> tuple[State, Report]:
    """Draws up to T tokens a live row.

    Args:
      params: the parameters.
      state: given back in place.
      most: tokens a row, at most T.
      enough: stops once so many answers have ended.
      allowed: see `draws.draw`; holds for all tokens of the segment.
    """
    head = self.model.lm_head_weight(params)
    shape = state.hidden.shape[:2]
    live = state.cache.filled.live
    length = self.segment

    def going(carry: tuple[State, Report]) -> Array:
      now = carry[0].cache.filled
      ended = jnp.sum(live & ~now.live)
      return (now.recent < most) & jnp.any(now.live) & (ended < enough)

    def advance(carry: tuple[State, Report]) -> tuple[State, Report]:
      state, report = carry
      cache, rows = state.cache, state.rows
      live, place = cache.filled.live, cache.filled.recent
      token, logprob = draw(
        state.hidden,
        head,
        rows,
        forbidden=self._forbidden,
        stop=self._stop,
        temperature=self.temperature,
        allowed=allowed,
      )
      # An answer's last token is run through the model too: whoever goes on
      # behind it needs its state, and the program holds one sampling step.
      hidden, cache = self.model.decode(params, token, cache)
      on = live & ~ends(token, rows, self._stop)
      drawn = live.astype(jnp.int32)
      state = State(
        cache=cache._replace(filled=cache.filled._replace(live=on)),
        first=state.first,
        hidden=hidden,
        rows=rows._replace(
          position=rows.position + drawn,
          left=rows.left - drawn,
          early=rows.early - drawn,
        ),
      )
      return state, Report(
        tokens=report.tokens.at[place].set(token),
        logprobs=report.logprobs.at[place].set(logprob),
        counts=report.counts + drawn,
        live=on,
      )

    report = Report(
      tokens=jnp.zeros((length, *shape), jnp.int32),
      logprobs=jnp.zeros((length, *shape), jnp.float32),
      counts=jnp.zeros(shape, jnp.int32),
      live=live,
    )
    state, report = jax.lax.while_loop(going, advance, (state, report))
    cache = self.model.settle(state.cache, report.counts)
    report = jax.tree.map(lambda x: constrain(x, *(None,) * x.ndim), report)
    return self._pinned(state._replace(cache=cache)), report

  def _pick(
    self,
    state: State,
    lanes: Int[Array, " G2"],
    slots: Int[Array, "G2 n2"],
    kept: Bool[Array, "G2 n2"],
  ) -> State:
    """A smaller state of some of the lanes and slots of each.

    Slots that are not `kept` are free.
    """

    def one(names: tuple[str | None, ...], leaf: Array) -> Array:
      lead = names.index("batch") if "batch" in names else None
      if lead is None:
        return leaf
      index: list[Any] = [slice(None)] * lead
      if names.count("batch") == 1:
        return leaf[(*index, lanes)]
      return leaf[(*index, lanes[:, None], slots)]

    picked = jax.tree.map(one, self.axes(), state, is_leaf=_is_names)
    filled = picked.cache.filled
    filled = filled._replace(live=filled.live & kept)
    return self._pinned(
      picked._replace(cache=picked.cache._replace(filled=filled))
    )


def _where(mask: Array, new: Array, old: Array) -> Array:
  return jnp.where(mask.reshape(*mask.shape, *(1,) * (new.ndim - 2)), new, old)


def _is_names(node: Any) -> bool:
  """Whether a node of a tree of axes is a leaf, not a named tuple."""
  return type(node) is tuple


def bucket(length: int, most: int, smallest: int) -> int:
  """The size that `length` is padded to: a power of two, `most` at most."""
  return min(most, max(smallest, 1 << (length - 1).bit_length()))


def packed(allowed: np.ndarray) -> np.ndarray:
  """Words for `draws.draw` of a bool [V]."""
  padded = np.zeros(-(-len(allowed) // 32) * 32, bool)
  padded[: len(allowed)] = allowed
  return np.packbits(padded, bitorder="little").view("<u4")
