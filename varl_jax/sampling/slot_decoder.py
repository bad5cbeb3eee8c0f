"""The slots of the sampler as the decoder of a local model."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from varl_jax.models.registry import CausalModel
from varl_jax.models.sharding import use
from varl_jax.sampling.local_chat import Drawn, Job
from varl_jax.sampling.slot_programs import SlotPrograms
from varl_jax.sampling.slots import Request, Slots


class SlotDecoder:
  """A `local_chat.Decoder` over frozen weights.

  Replies to one prompt share its prefill where they were asked for together.
  """

  def __init__(
    self,
    *,
    model: CausalModel,
    params: Any,
    stop_ids: Iterable[int],
    forbidden_ids: Iterable[int] = (),
    slots: int,
    width: int = 1,
    max_prompt: int,
    max_new: int,
    segment: int = 16,
    mesh: Mesh | None = None,
  ):
    """Allocates the slots.

    Args:
      model: the architecture.
      params: as decoding reads them.
      stop_ids: ids that end a reply.
      forbidden_ids: ids that are never drawn.
      slots: replies drawn at a time.
      width: of them to one prompt; the others are prefilled again.
      max_prompt: longest prompt in tokens.
      max_new: longest reply in tokens.
      segment: tokens between two looks at what has come in.
      mesh: devices that the weights lie on, None for a single one.

    Raises:
      ValueError: there are not so many positions in the model.
    """
    limit = model.config.max_position
    if max_prompt + max_new > limit:
      raise ValueError(
        f"A conversation of {max_prompt} and a reply of {max_new} tokens are"
        f" above the model's {limit} positions."
      )
    self._mesh = mesh
    self._width = width
    self._words = -(-model.config.vocab_size // 32)
    self._asked: dict[Job, tuple[Request, int]] = {}
    with use(mesh):
      self._slots = Slots(
        SlotPrograms(
          model=model,
          stop_ids=sorted(set(stop_ids)),
          forbidden_ids=sorted(set(forbidden_ids)),
          segment=segment,
        ),
        params,
        lanes=max(1, slots // width),
        width=width,
        max_prompt=max_prompt,
        max_new=max_new,
      )

  @property
  def prefilled(self) -> int:
    """Prompts read so far."""
    return self._slots.prefilled

  def add(self, jobs: Sequence[Job]) -> None:
    """Takes jobs that differ in their seeds and constraints alone."""
    for start in range(0, len(jobs), self._width):
      part = tuple(jobs[start : start + self._width])
      request = Request(
        prompt=part[0].prompt,
        count=len(part),
        limit=part[0].limit,
        temperature=part[0].temperature,
        keys=tuple((0, 0, job.seed, 0) for job in part),
        mask=_Masks(part, self._words)
        if any(job.constraint for job in part)
        else None,
        tag=part,
      )
      self._asked |= {job: (request, i) for i, job in enumerate(part)}
      self._slots.submit(request)

  def drop(self, job: Job) -> None:
    """Ends a job early."""
    asked = self._asked.pop(job, None)
    if asked is not None:
      self._slots.drop(*asked)

  def advance(self) -> list[Drawn]:
    """Draws a segment."""
    drawn: dict[Job, Drawn] = {}

    def grown(
      request: Request,
      index: int,
      tokens: Sequence[int],
      logprobs: Sequence[float],
    ) -> None:
      job = request.tag[index]
      drawn[job] = Drawn(job=job, tokens=tokens, logprobs=logprobs, finish=None)

    with use(self._mesh):
      finished = self._slots.step(grown)
    for done in finished:
      job = done.request.tag[done.index]
      self._asked.pop(job, None)
      drawn[job] = dataclasses.replace(drawn[job], finish=done.sample.finish)
    return list(drawn.values())


class _Masks:
  """What the next token of each reply to a prompt may be."""

  def __init__(self, jobs: Sequence[Job], words: int):
    self._jobs = jobs
    self._words = words
    self._taken = [0] * len(jobs)

  def __call__(self, index: int, tokens: Sequence[int]) -> np.ndarray | None:
    constraint = self._jobs[index].constraint
    if constraint is None:
      return None
    for token in tokens[self._taken[index] :]:
      constraint.advance(token)
    self._taken[index] = len(tokens)
    words = np.empty(self._words, np.uint32)
    constraint.fill(words)
    return words
