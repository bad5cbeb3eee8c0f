import numpy as np
import pytest

from varl_jax.rl.batch import (
  bucket_length,
  length_mask,
  pack,
  split_minibatches,
)
from varl_jax.types import Rollout


def rollout(tokens, *, task="t", sample=0, logprobs=None, mask=None):
  return Rollout(
    task_id=task,
    sample=sample,
    answer="",
    tokens=tuple(tokens),
    logprobs=tuple(logprobs or [-1.0] * len(tokens)),
    mask=tuple(mask or [1] * len(tokens)),
    finish="stop",
  )


def test_mask_comes_from_the_length_when_pad_is_a_stop_id():
  assert length_mask([3], 5).astype(int).tolist() == [[1, 1, 1, 0, 0]]
  batch = pack(
    [[9]], [rollout([5, 6, 2])], advantages=[1.0], group_ids=[0], pad_id=2
  )
  assert batch.targets[0, :5].tolist() == [5, 6, 2, 2, 2]
  assert batch.mask[0, :5].astype(int).tolist() == [1, 1, 1, 0, 0]
  assert batch.mask.sum() == 3


def test_rows_are_copied_as_sampled():
  batch = pack(
      [[7, 8], [9]],
      [
          rollout([1, 2, 3, 4], logprobs=[-0.1, -0.2, 0, -0.4],
                  mask=[1, 1, 0, 1]),
          rollout([5]),
      ],
      advantages=[0.5, -0.5],
      group_ids=[3, 3],
      pad_id=99,
  )  # fmt: skip
  assert batch.tokens.shape == (2, 32) and batch.targets.shape == (2, 32)
  assert batch.tokens[0, :7].tolist() == [7, 8, 1, 2, 3, 4, 99]
  assert batch.tokens[1, :3].tolist() == [9, 5, 99]
  assert batch.lengths.tolist() == [6, 2]
  assert batch.prompt_lengths.tolist() == [2, 1]
  assert batch.mask[0, :5].tolist() == [True, True, False, True, False]
  np.testing.assert_allclose(batch.logprobs[0, :4], [-0.1, -0.2, 0, -0.4])


def test_unscored_rows_train_nothing():
  batch = pack(
      [[1]] * 2, [rollout([2, 3])] * 2, advantages=[0, 0], group_ids=[0, 0],
      valid=[True, False],
  )  # fmt: skip
  assert batch.mask.sum(1).tolist() == [2, 0]


@pytest.mark.parametrize(
  ("length", "size"),
  [(1, 32), (32, 32), (33, 48), (49, 64), (65, 96), (97, 128), (1000, 1024)],
)
def test_buckets(length, size):
  assert bucket_length(length) == size


def test_buckets_are_few_and_capped():
  assert len({bucket_length(n) for n in range(1, 16385)}) == 19
  assert bucket_length(100, largest=112) == 112
  assert bucket_length(1, smallest=1) == 2
  with pytest.raises(ValueError, match="above the limit of 112"):
    bucket_length(113, largest=112)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"prompts": [[]]}, "has no token"),
    ({"prompts": [[1]] * 2}, "One entry a row"),
    ({"max_prompt": 1, "max_response": 8}, "prompt of 2 tokens"),
    ({"max_prompt": 4, "max_response": 1}, "above the limit of 1"),
    ({"advantages": []}, "One entry a row"),
    ({"rollouts": [rollout([1, 2], logprobs=[-1.0])]}, "2 tokens, 1 logp"),
    ({"rollouts": [rollout([1, 2], mask=[1])]}, "1 mask entries"),
  ],
)
def test_refusals(change, message):
  args = {
    "prompts": [[1, 2]],
    "rollouts": [rollout([3, 4])],
    "advantages": [0.0],
    "group_ids": [0],
  } | change
  with pytest.raises(ValueError, match=message):
    pack(args.pop("prompts"), args.pop("rollouts"), **args)


def test_empty_batch_is_refused():
  with pytest.raises(ValueError, match="at least one row"):
    pack([], [], advantages=[], group_ids=[])


def test_response_without_tokens_is_a_masked_row():
  batch = pack([[1]], [rollout([])], advantages=[1.0], group_ids=[0])
  assert not batch.mask.any() and batch.lengths.tolist() == [1]


def test_minibatches_keep_groups_whole():
  ids = [4, 1, 4, 1, 7, 7, 7, 2]
  batch = pack(
      [[1]] * 8, [rollout([i + 1]) for i in range(8)], advantages=np.ones(8),
      group_ids=ids,
  )  # fmt: skip
  parts = split_minibatches(batch, groups=2, rows=4, multiple=3)
  assert [p.group_ids.tolist() for p in parts] == [
    [4, 1, 4, 1, -1, -1],
    [7, 7, 7, 2, -1, -1],
  ]
  assert parts[0].targets[:4, 0].tolist() == [1, 2, 3, 4]
  for part in parts:
    assert not part.mask[4:].any() and part.mask[:4].any(axis=1).all()
    assert part.lengths[4:].tolist() == [1, 1]
    assert part.advantages[4:].tolist() == [0, 0]
  assert batch.mask.any(axis=1).all()
