"""Rollouts as padded arrays, and their split into mini-batches.

Ids, sampler logprobs and the loss mask of a response travel together and are
copied as sampled, never tokenized again. Masks come from lengths: a padding id
that equals a stop id changes nothing.

Response arrays are [B, R], apart from the tokens [B, L], so that the LM head is
paid for positions that may be trained only.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from varl_jax.types import Rollout


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
  """Rows of prompt and response, padded on the right.

  Attributes:
    tokens: [B, L] ids, the response right behind its prompt.
    prompt_lengths: [B], at least 1.
    lengths: [B], prompt and response.
    targets: [B, R] ids of the response.
    mask: [B, R], True for trained tokens.
    logprobs: [B, R] nats, recorded by the sampler.
    advantages: [B].
    group_ids: [B], -1 for rows that only fill up the shape.
  """

  tokens: Int[np.ndarray, "B L"]
  prompt_lengths: Int[np.ndarray, "B"]
  lengths: Int[np.ndarray, "B"]
  targets: Int[np.ndarray, "B R"]
  mask: Bool[np.ndarray, "B R"]
  logprobs: Float[np.ndarray, "B R"]
  advantages: Float[np.ndarray, "B"]
  group_ids: Int[np.ndarray, "B"]

  def take(self, rows: np.ndarray) -> "Batch":
    """The rows of the given indices; -1 makes a row without any token."""
    real = rows >= 0
    picked = {
      field.name: getattr(self, field.name)[rows]
      for field in dataclasses.fields(self)
    }
    picked["mask"] = picked["mask"] & real[:, None]
    picked["group_ids"] = np.where(real, picked["group_ids"], -1)
    picked["advantages"] = np.where(real, picked["advantages"], 0).astype(
      np.float32
    )
    for name in ("prompt_lengths", "lengths"):
      picked[name] = np.where(real, picked[name], 1).astype(np.int32)
    return Batch(**picked)


def bucket_length(
  length: int, *, smallest: int = 32, largest: int | None = None
) -> int:
  """Smallest of 2^k and 3 * 2^(k-1), from `smallest` up, that holds `length`.

  `largest` caps the result: a run knows the longest row it can meet.

  Raises:
    ValueError: `length` is above `largest`.
  """
  if largest is not None and length > largest:
    raise ValueError(f"A row of {length} tokens, above the limit of {largest}.")
  size = max(smallest, 2)
  while size < length:
    size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
  return size if largest is None else min(size, largest)


def length_mask(lengths: Sequence[int] | np.ndarray, size: int) -> np.ndarray:
  """Bool [B, size]: the first `lengths[b]` entries of row b."""
  return np.arange(size)[None, :] < np.asarray(lengths)[:, None]


def pack(
  prompts: Sequence[Sequence[int]],
  rollouts: Sequence[Rollout],
  *,
  advantages: Sequence[float] | np.ndarray,
  group_ids: Sequence[int] | np.ndarray,
  valid: Sequence[bool] | np.ndarray | None = None,
  pad_id: int = 0,
  max_prompt: int | None = None,
  max_response: int | None = None,
) -> Batch:
  """Pads rollouts to a bucketed length.

  Args:
    prompts: one id sequence a row, at least one id each.
    rollouts: one a row; `tokens`, `logprobs` and `mask` of equal length.
    advantages: [B], from `group_advantages`.
    group_ids: [B].
    valid: [B], False for rows that could not be scored: none of their tokens
      is trained, so they are in neither part of the token mean.
    pad_id: any id of the vocabulary.
    max_prompt: cap of the padded shape, tokens.
    max_response: the same for responses.

  Raises:
    ValueError: lengths that do not agree, an empty prompt, or a row above its
      cap.
  """
  rows = len(rollouts)
  usable = np.ones(rows, bool) if valid is None else np.asarray(valid, bool)
  if (
    not len(prompts) == len(advantages) == len(group_ids) == rows == len(usable)
  ):
    raise ValueError(
      f"One entry a row: {rows} rollouts, {len(prompts)} prompts,"
      f" {len(advantages)} advantages, {len(group_ids)} group ids,"
      f" {len(usable)} valid flags."
    )
  if not rows:
    raise ValueError("A batch has at least one row.")
  for prompt, rollout in zip(prompts, rollouts, strict=True):
    _check_row(prompt, rollout)

  prompt_lengths = np.array([len(prompt) for prompt in prompts], np.int32)
  responses = np.array([len(r.tokens) for r in rollouts], np.int32)
  lengths = prompt_lengths + responses
  if max_prompt is not None and prompt_lengths.max() > max_prompt:
    raise ValueError(
      f"A prompt of {prompt_lengths.max()} tokens, above the limit of"
      f" {max_prompt}."
    )
  limit = None
  if max_prompt is not None and max_response is not None:
    limit = max_prompt + max_response
  wide = bucket_length(int(lengths.max()), largest=limit)
  narrow = bucket_length(int(responses.max()), largest=max_response)
  tokens = np.full((rows, wide), pad_id, np.int32)
  targets = np.full((rows, narrow), pad_id, np.int32)
  mask = np.zeros((rows, narrow), bool)
  logprobs = np.zeros((rows, narrow), np.float32)
  for row, (prompt, rollout) in enumerate(zip(prompts, rollouts, strict=True)):
    start, end, size = prompt_lengths[row], lengths[row], responses[row]
    tokens[row, :start] = prompt
    tokens[row, start:end] = targets[row, :size] = rollout.tokens
    mask[row, :size] = np.asarray(rollout.mask, bool) & usable[row]
    logprobs[row, :size] = rollout.logprobs
  return Batch(
    tokens=tokens,
    prompt_lengths=prompt_lengths,
    lengths=lengths,
    targets=targets,
    mask=mask,
    logprobs=logprobs,
    advantages=np.asarray(advantages, np.float32),
    group_ids=np.asarray(group_ids, np.int32),
  )


def _check_row(prompt: Sequence[int], rollout: Rollout) -> None:
  if not len(prompt):
    raise ValueError(f"The prompt of task {rollout.task_id!r} has no token.")
  sizes = {len(rollout.tokens), len(rollout.logprobs), len(rollout.mask)}
  if len(sizes) > 1:
    raise ValueError(
      f"Rollout {rollout.sample} of task {rollout.task_id!r} has"
      f" {len(rollout.tokens)} tokens, {len(rollout.logprobs)} logprobs and"
      f" {len(rollout.mask)} mask entries."
    )


def split_minibatches(
  batch: Batch, *, groups: int, rows: int = 0, multiple: int = 1
) -> list[Batch]:
  """Cuts a batch into mini-batches of whole groups, in order of appearance.

  Args:
    batch: rows of a group need not be neighbours.
    groups: groups a mini-batch; the last may hold fewer.
    rows: least number of rows; empty rows fill up, so that the shape stays the
      same from step to step.
    multiple: the number of rows is a multiple of this.

  Returns:
    Batches of one shape, whose rows with group id -1 are filling.
  """
  order = list(dict.fromkeys(batch.group_ids[batch.group_ids >= 0].tolist()))
  parts = [
    np.flatnonzero(np.isin(batch.group_ids, order[at : at + groups]))
    for at in range(0, len(order), groups)
  ]
  size = max([rows, *(len(part) for part in parts)])
  size += -size % multiple
  return [
    batch.take(np.pad(part, (0, size - len(part)), constant_values=-1))
    for part in parts
  ]
