"""Jobs drawn in slots: alike whoever shares them, held to masks, given up."""

import numpy as np
import pytest

from tests.sampling.slots_test import (
  FORBIDDEN,
  LIMIT,
  STOP,
  VOCAB,
  model_of,
  params_of,
)
from varl_jax.sampling.local_chat import Job
from varl_jax.sampling.slot_decoder import SlotDecoder

PROMPT = (3, 4, 5, 6)


class Alternating:
  """Allows 4 and 5 in turns, then the stop token; keeps what it was told."""

  def __init__(self, length):
    self.length = length
    self.taken = []

  def fill(self, out):
    token = 4 + len(self.taken) % 2
    if len(self.taken) == self.length:
      token = STOP
    out[:] = np.uint32(1 << token)

  def advance(self, token):
    self.taken.append(token)


@pytest.fixture(scope="module")
def decoder():
  return SlotDecoder(
    model=model_of("llama"),
    params=params_of("llama"),
    stop_ids=[STOP],
    forbidden_ids=FORBIDDEN,
    slots=4,
    width=2,
    max_prompt=16,
    max_new=LIMIT,
    segment=3,
  )


def job(seed, prompt=PROMPT, **changes):
  options = dict(prompt=prompt, limit=LIMIT, temperature=1.0, seed=seed)
  return Job(**{**options, **changes})


def drain(decoder, jobs):
  """Everything that jobs get, as {job: (tokens, finish)}."""
  found = {made: ([], None) for made in jobs}
  while any(finish is None for _, finish in found.values()):
    drawn = decoder.advance()
    assert drawn
    for piece in drawn:
      tokens, finish = found[piece.job]
      assert finish is None and len(piece.tokens) == len(piece.logprobs)
      found[piece.job] = ([*tokens, *piece.tokens], piece.finish)
  assert decoder.advance() == []
  return found


def test_a_seed_draws_the_same_in_any_company(decoder):
  alone = {}
  for seed in range(4):
    made = job(seed)
    decoder.add([made])
    alone[seed] = drain(decoder, [made])[made]
  assert len({tuple(tokens) for tokens, _ in alone.values()}) > 1
  before = decoder.prefilled
  together = [job(seed) for seed in range(4)]
  others = [job(9, prompt=(7, 8)), job(10, prompt=(9,), temperature=0.5)]
  decoder.add(together)
  for other in others:
    decoder.add([other])
  found = drain(decoder, [*together, *others])
  assert [found[made] for made in together] == list(alone.values())
  # Two lanes of two for one prompt, one for each of the others.
  assert decoder.prefilled == before + 4
  for tokens, finish in found.values():
    assert finish == ("stop" if tokens[-1] == STOP else "length")
    assert not set(tokens) & set(FORBIDDEN)


def test_each_reply_has_a_mask_of_its_own(decoder):
  held = [Alternating(3), Alternating(5)]
  jobs = [job(1, constraint=held[0]), job(2, constraint=held[1]), job(3)]
  decoder.add(jobs)
  found = drain(decoder, jobs)
  assert found[jobs[0]] == ([4, 5, 4, STOP], "stop")
  assert found[jobs[1]] == ([4, 5, 4, 5, 4, STOP], "stop")
  assert held[0].taken == [4, 5, 4] and held[1].taken == [4, 5, 4, 5, 4]
  free = job(3)
  decoder.add([free])
  assert drain(decoder, [free])[free] == found[jobs[2]]


def test_a_job_given_up_is_told_of_no_more(decoder):
  jobs = [job(seed) for seed in (1, 2)]
  queued = [job(seed, prompt=(6, seed)) for seed in range(4)]
  decoder.add(jobs)
  for made in queued:
    decoder.add([made])
  assert {piece.job for piece in decoder.advance()} <= {*jobs, *queued}
  for made in (jobs[0], *queued[2:]):
    decoder.drop(made)
    decoder.drop(made)
  seen = set()
  while drawn := decoder.advance():
    seen |= {piece.job for piece in drawn}
  assert not seen & {jobs[0], *queued[2:]}
  again = job(2)
  decoder.add([again])
  assert drain(decoder, [again])[again][1] in ("stop", "length")


def test_more_than_the_model_has_positions_for_is_refused():
  with pytest.raises(ValueError, match="above the model's 64 positions"):
    SlotDecoder(
      model=model_of("llama"),
      params=params_of("llama"),
      stop_ids=[STOP],
      slots=2,
      max_prompt=60,
      max_new=5,
    )
  assert VOCAB < 32
