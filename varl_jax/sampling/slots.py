"""Answers drawn in slots: prompts share a lane, a finished slot is used again.

A lane holds a prompt, prefilled once, and has slots for answers to it; answers
that find no slot wait for one of their lane. A prompt that finds no lane waits
for one. The host looks at the devices once a segment, hands out what is
finished, and fills what is free. All shapes are fixed, so nothing compiles
again: prompts are prefilled in a few padded lengths, attention reads as much of
the cache as is filled.

Which tokens an answer gets does not depend on where and with whom it is drawn;
see `draws`.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import jax
import numpy as np

from varl_jax.models.layers import Params
from varl_jax.sampling.draws import Rows
from varl_jax.sampling.slot_programs import (
  STOPS,
  Begin,
  SlotPrograms,
  State,
  bucket,
)
from varl_jax.types import Finish

SMALLEST_BUCKET: Final = 16
# Tokens that are prefilled together, padding among them.
PREFILL_TOKENS: Final = 4096
# A state of fewer slots is not made smaller.
FEWEST_ROWS: Final = 8

# From an answer's index and tokens so far to the words of `draws.draw`, None
# for all.
Mask = Callable[[int, Sequence[int]], np.ndarray | None]
# Told of an answer's new tokens and their log-probabilities.
OnTokens = Callable[["Request", int, Sequence[int], Sequence[float]], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
  """One sampled answer.

  Attributes:
    tokens: sampled ids; the stop token, when there was one, is the last.
    logprobs: log-probability of each token at the time, in nats.
    finish: `stop`, or `length` when the limit ended it.
    versions: of the weights that drew each token; empty where nobody counts.
  """

  tokens: tuple[int, ...]
  logprobs: tuple[float, ...]
  finish: Finish
  versions: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """Answers to draw to one prompt.

  Attributes:
    prompt: token ids.
    count: answers.
    first: index of the first one in its group, part of its random key.
    seed: the run's, part of the random key, as are the next two.
    step: of training.
    task: number of the task.
    position: tokens that the answers have already, those of tools among them.
    limit: most tokens to draw.
    least: tokens before the first stop id.
    temperature: T; 0 takes the likeliest token.
    stop_ids: more ids that end an answer.
    keys: seed, step, task and sample of each answer where they share less; ()
      for the numbers above.
    mask: which ids the next token may be; costs a visit of the host a token.
    tag: anything, for the caller.
  """

  prompt: Sequence[int]
  limit: int
  count: int = 1
  first: int = 0
  seed: int = 0
  step: int = 0
  task: int = 0
  position: int = 0
  least: int = 0
  temperature: float = 1.0
  stop_ids: Iterable[int] = ()
  keys: Sequence[tuple[int, int, int, int]] = ()
  mask: Mask | None = None
  tag: Any = None

  def key(self, index: int) -> tuple[int, int, int, int]:
    """Seed, step, task and sample of an answer."""
    if self.keys:
      return self.keys[index]
    return self.seed, self.step, self.task, self.first + index


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finished:
  """An answer that is at its end.

  Attributes:
    request: what it answers.
    index: of the answer, from 0 to the request's count.
    sample: the answer.
  """

  request: Request
  index: int
  sample: Sample


@dataclasses.dataclass(kw_only=True, eq=False)
class _Answer:
  """An answer in a slot."""

  request: Request
  index: int
  tokens: list[int] = dataclasses.field(default_factory=list)
  logprobs: list[float] = dataclasses.field(default_factory=list)
  versions: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(kw_only=True)
class _Lane:
  """A prompt's lane: answers in its slots, None for a free one."""

  slots: list[_Answer | None]
  waiting: collections.deque[_Answer] = dataclasses.field(
    default_factory=collections.deque
  )

  def busy(self) -> bool:
    return bool(self.waiting) or any(self.slots)


class Slots:
  """Draws answers to requests that may come at any time.

  Not for several threads at a time.
  """

  def __init__(
    self,
    programs: SlotPrograms,
    params: Params,
    *,
    lanes: int,
    width: int,
    max_prompt: int,
    max_new: int,
    version: int = 0,
  ):
    """Allocates the slots.

    Args:
      programs: of the model.
      params: the model's parameters now.
      lanes: prompts at a time.
      width: answers to one prompt at a time.
      max_prompt: longest prompt, tokens.
      max_new: most tokens of an answer.
      version: of the parameters.
    """
    self._programs = programs
    self._params = params
    self._version = version
    self._next: tuple[Params, int] | None = None
    self._max_prompt = max_prompt
    self._max_new = max_new
    self._queue: collections.deque[Request] = collections.deque()
    self._dropped: set[tuple[int, int]] = set()
    self._lanes = [_Lane(slots=[None] * width) for _ in range(lanes)]
    self._state: State = programs.empty(
      params, lanes, width, max_prompt, max_new
    )
    self.prefilled = 0
    self.segments = 0

  @property
  def shape(self) -> tuple[int, int]:
    """Lanes, and slots of each."""
    return len(self._lanes), len(self._lanes[0].slots)

  def submit(self, request: Request) -> None:
    """Takes a request; `step` hands out its answers.

    Raises:
      ValueError: it does not fit, or a number in it is out of range.
    """
    if not 1 <= len(request.prompt) <= self._max_prompt:
      raise ValueError(
        f"The prompt has {len(request.prompt)} tokens; the slots take 1 to"
        f" {self._max_prompt}."
      )
    if not 1 <= request.limit <= self._max_new:
      raise ValueError(
        f"A limit is between 1 and {self._max_new}, got {request.limit}."
      )
    if request.count < 1 or request.temperature < 0:
      raise ValueError("count is at least 1 and temperature at least 0.")
    if len(set(request.stop_ids)) > STOPS:
      raise ValueError(f"A request has at most {STOPS} stop ids of its own.")
    heat = self._programs.temperature
    if heat is not None and (
      request.temperature != heat
      or request.least
      or request.mask
      or set(request.stop_ids)
    ):
      raise ValueError(
        f"These slots draw all answers at temperature {heat}, with no settings"
        " of their own."
      )
    self._queue.append(request)

  def update(self, params: Params, version: int, *, drain: bool) -> None:
    """Draws with other weights from now on.

    Args:
      params: the weights.
      version: recorded with each token they draw.
      drain: let prompts that have a lane be answered by the old weights to the
        end, while no others begin; else the next segment uses the new weights,
        and what the old ones made of a prompt and of an answer's begin stays.
    """
    self._next = (params, version) if drain else None
    if not drain:
      self._params, self._version = params, version

  def idle(self) -> bool:
    """Whether there is nothing to draw."""
    return not self._queue and not self._busy()

  def drop(self, request: Request, index: int) -> None:
    """Gives up an answer; its slot is free at once."""
    if any(request is queued for queued in self._queue):
      # It gets a lane first, where its other answers may go on.
      self._dropped.add((id(request), index))
      return
    for lane in self._lanes:
      for held in list(lane.waiting):
        if held.request is request and held.index == index:
          lane.waiting.remove(held)
      for place, held in enumerate(lane.slots):
        if held and held.request is request and held.index == index:
          lane.slots[place] = None

  def step(self, on_tokens: OnTokens | None = None) -> list[Finished]:
    """Fills free slots, draws a segment, and hands out what is finished.

    Args:
      on_tokens: told of what each answer has grown by, its last tokens too.
    """
    if self._next is not None and not self._busy():
      (self._params, self._version), self._next = self._next, None
    if self._next is None:
      self._admit()
    self._begin()
    return self._segment(on_tokens) if self._busy() else []

  def compact(self) -> None:
    """Goes on with fewer slots where few answers are left.

    For the end of a batch: later requests find fewer slots, too.
    """
    if self._queue:
      return
    held = [
      [(g, s) for s, answer in enumerate(lane.slots) if answer is not None]
      for g, lane in enumerate(self._lanes)
    ]
    if any(lane.waiting for lane in self._lanes):
      return
    lanes, width = self.shape
    best = None
    while lanes * width >= 4 * FEWEST_ROWS:
      lanes, width = _smaller(lanes, width)
      if sum(-(-len(own) // width) for own in held) > lanes:
        break
      best = lanes, width
    if best is None:
      return
    lanes, width = best
    pieces = [
      own[i : i + width] for own in held for i in range(0, len(own), width)
    ]
    from_lanes = np.zeros(lanes, np.int32)
    from_slots = np.zeros((lanes, width), np.int32)
    kept = np.zeros((lanes, width), bool)
    moved = [_Lane(slots=[None] * width) for _ in range(lanes)]
    for to, piece in enumerate(pieces):
      from_lanes[to] = piece[0][0]
      for slot, (g, s) in enumerate(piece):
        from_slots[to, slot], kept[to, slot] = s, True
        moved[to].slots[slot] = self._lanes[g].slots[s]
    self._lanes = moved
    self._state = self._programs.pick(self._state, from_lanes, from_slots, kept)

  def _busy(self) -> bool:
    return any(lane.busy() for lane in self._lanes)

  def _admit(self) -> None:
    """Prefills prompts of the queue into free lanes."""
    free = [i for i, lane in enumerate(self._lanes) if not lane.busy()]
    sizes: dict[int, list[tuple[int, Request]]] = {}
    for lane in free[: len(self._queue)]:
      request = self._queue.popleft()
      self._lanes[lane].waiting.extend(
        _Answer(request=request, index=index)
        for index in range(request.count)
        if (id(request), index) not in self._dropped
      )
      self._dropped -= {(id(request), i) for i in range(request.count)}
      size = bucket(len(request.prompt), self._max_prompt, SMALLEST_BUCKET)
      sizes.setdefault(size, []).append((lane, request))
    for size, chosen in sizes.items():
      # Either many prompts or one: two programs a length.
      many = max(1, min(len(self._lanes), PREFILL_TOKENS // size))
      while chosen:
        count = many if len(chosen) > many // 2 else 1
        self._prefill(chosen[:count], count, size)
        chosen = chosen[count:]

  def _prefill(
    self, chosen: Sequence[tuple[int, Request]], count: int, size: int
  ) -> None:
    tokens = np.zeros((count, size), np.int32)
    lengths = np.zeros(count, np.int32)
    lanes = np.full(count, len(self._lanes), np.int32)  # of padding: none
    for row, (lane, request) in enumerate(chosen):
      tokens[row, : len(request.prompt)] = request.prompt
      lengths[row] = len(request.prompt)
      lanes[row] = lane
    self._state = self._programs.admit(
      self._params, self._state, tokens, lengths, lanes
    )
    self.prefilled += len(chosen)

  def _begin(self) -> None:
    """Puts waiting answers into free slots of their lanes."""
    shape = self.shape
    flat = np.zeros((3, *shape), np.int32)
    heat = np.zeros(shape, np.float32)
    stops = np.full((*shape, STOPS), -1, np.int32)
    words = np.zeros((*shape, 4), np.uint32)
    mask = np.zeros(shape, bool)
    for g, lane in enumerate(self._lanes):
      for s, held in enumerate(lane.slots):
        if held is not None or not lane.waiting:
          continue
        answer = lane.slots[s] = lane.waiting.popleft()
        request = answer.request
        words[g, s] = [part & 0xFFFFFFFF for part in request.key(answer.index)]
        flat[:, g, s] = request.position, request.limit, request.least
        heat[g, s] = request.temperature
        own = sorted(set(request.stop_ids))
        stops[g, s, : len(own)] = own
        mask[g, s] = True
    if not mask.any():
      return
    rows: Any = (words, *flat, heat, stops)
    begin: Any = (mask, words, Rows(*rows))
    self._state = self._programs.begin(self._state, Begin(*begin))

  def _segment(self, on_tokens: OnTokens | None) -> list[Finished]:
    allowed = self._allowed()
    slots = [answer for lane in self._lanes for answer in lane.slots]
    waits = self._queue or any(lane.waiting for lane in self._lanes)
    # With others waiting a free slot is dear, else only the rest counts.
    enough = max(1, len(slots) // 8) if waits else len(slots) + 1
    most = self._programs.segment if allowed is None else 1
    self._state, report = self._programs.decode(
      self._params,
      self._state,
      np.int32(most),
      np.int32(enough),
      allowed,
    )
    self.segments += 1
    tokens, logprobs, counts, live = jax.device_get(report)
    finished = []
    for g, lane in enumerate(self._lanes):
      for s, answer in enumerate(lane.slots):
        if answer is None:
          continue
        count = int(counts[g, s])
        answer.tokens += tokens[:count, g, s].tolist()
        answer.logprobs += logprobs[:count, g, s].tolist()
        answer.versions += [self._version] * count
        if on_tokens is not None and count:
          new = answer.tokens[-count:], answer.logprobs[-count:]
          on_tokens(answer.request, answer.index, *new)
        if not live[g, s]:
          lane.slots[s] = None
          finished.append(self._finished(answer))
    return finished

  def _finished(self, answer: _Answer) -> Finished:
    request, last = answer.request, answer.tokens[-1]
    stop = last in self._programs.stop_ids or last in set(request.stop_ids)
    return Finished(
      request=request,
      index=answer.index,
      sample=Sample(
        tokens=tuple(answer.tokens),
        logprobs=tuple(answer.logprobs),
        finish="stop" if stop else "length",
        versions=tuple(answer.versions),
      ),
    )

  def _allowed(self) -> np.ndarray | None:
    """Masks of the next token, None when no answer has one."""
    found = {}
    for g, lane in enumerate(self._lanes):
      for s, answer in enumerate(lane.slots):
        if answer is not None and answer.request.mask is not None:
          found[g, s] = answer.request.mask(answer.index, answer.tokens)
    if not found:
      return None
    shape = self.shape
    vocab = self._programs.model.config.vocab_size
    allowed = np.full((*shape, -(-vocab // 32)), 0xFFFFFFFF, np.uint32)
    for place, words in found.items():
      if words is not None:
        allowed[place] = words
    return allowed


def _smaller(lanes: int, width: int) -> tuple[int, int]:
  """A shape of about a quarter of the slots; width goes first."""
  cut = 4
  while width > 1 and cut > 1:
    width, cut = -(-width // 2), cut // 2
  return max(1, lanes // cut), width
