"""How far the hidden expert, the patch library and the referee go together.

    python -m experiments.story_overlap

For each hidden check it prints the verifier it goes along with most (phi
coefficient): over texts of all four kinds, where the kind is a common cause,
and over good stories alone, where what is left is the predicates' own overlap.
A check overlaps above 0.9 in the first or 0.25 in the second, and
`story.validation.OVERLAPPING` lists those. Then it prints how often the
referee's order agrees with the hidden score on clear pairs (a difference of at
least 0.2), over texts of all kinds and over answers of the warm policy to the
same request.
"""

import itertools
import random
from collections.abc import Iterable, Sequence

import numpy as np
from absl import app, flags

from varl_jax.models.llama import Llama
from varl_jax.models.loading import load_model
from varl_jax.sampling.sampler import Sampler
from varl_jax.story import criteria, expert, grammar, readers, world
from varl_jax.story.requests import StoryRequest, draw_request
from varl_jax.types import Message

CLEAR = 0.2
OVERLAP = {"all": 0.9, "good": 0.25}
KINDS: tuple[grammar.Kind, ...] = ("good", "thin", "list", "ramble")

_TEXTS = flags.DEFINE_integer("texts", 4000, "Texts drawn.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the draw.")


Text = tuple[StoryRequest, str]
Texts = list[Text]


def draw(count: int, seed: int, kinds: Sequence[grammar.Kind] = KINDS) -> Texts:
  """Requests with a text each, the kinds in equal shares."""
  rng = random.Random(seed)
  drawn = []
  for index in range(count):
    request = draw_request(rng, validation=False)
    kind = kinds[index % len(kinds)]
    drawn.append((request, grammar.write(kind, request, rng)))
  return drawn


def correlations(drawn: Texts) -> dict[str, dict]:
  """Phi of every hidden check with every verifier."""
  hidden = {name: [] for name in expert.CHECKS}
  library: dict[str, list[bool]] = {}
  for request, text in drawn:
    for name, met in expert.expert_checks(request, text).items():
      hidden[name].append(met)
    for kind, made in criteria.items(request).items():
      if made[0].check:
        met = world.CHECKS.run(made[0].check, text)
        library.setdefault(kind, []).append(met)
  return {
    name: {kind: _phi(values, other) for kind, other in library.items()}
    for name, values in hidden.items()
  }


def _phi(one: list[bool], two: list[bool]) -> float:
  a, b = np.array(one, float), np.array(two, float)
  if a.std() == 0 or b.std() == 0:
    return 0.0
  return float(np.corrcoef(a, b)[0, 1])


def overlapping(count: int, seed: int) -> dict[str, tuple[float, float]]:
  """Largest phi of each hidden check: over all kinds, over good stories."""
  whole = correlations(draw(count, seed))
  good = correlations(draw(count, seed, kinds=("good",)))
  return {
    name: (
      max(whole[name].values(), key=abs),
      max(good[name].values(), key=abs),
    )
    for name in whole
  }


def overlaps(phi: tuple[float, float]) -> bool:
  """Whether a check with these two coefficients counts as overlapping."""
  return abs(phi[0]) > OVERLAP["all"] or abs(phi[1]) > OVERLAP["good"]


def referee_agreement(pairs: Iterable[tuple[Text, Text]]) -> float:
  """Share of clear pairs that the referee's taste orders like the expert."""
  agree = total = 0
  for one, two in pairs:
    gap = _hidden(one) - _hidden(two)
    taste = readers.quality(one[1]) - readers.quality(two[1])
    if abs(gap) >= CLEAR and taste:
      total += 1
      agree += (gap > 0) == (taste > 0)
  return agree / total


def _hidden(text: Text) -> float:
  return expert.expert_score(expert.expert_checks(*text))


def random_pairs(drawn: Texts, seed: int) -> list[tuple[Text, Text]]:
  """Pairs of texts of any kind."""
  rng = random.Random(seed)
  pairs = []
  for _ in range(10 * len(drawn)):
    one, two = rng.sample(drawn, 2)
    pairs.append((one, two))
  return pairs


def policy_pairs(groups: int, seed: int) -> list[tuple[Text, Text]]:
  """Pairs of the warm policy's answers to the same validation request."""
  config, params, tokenizer = load_model("story")
  sampler = Sampler(
    model=Llama(config),
    stop_ids=tokenizer.stop_ids,
    forbidden_ids=tokenizer.forbidden_ids,
    max_prompt=48,
    max_new=64,
    seed=seed,
  )
  requests = world.held_out_requests(groups, seed=seed)
  drawn = sampler.generate(
    [
      tokenizer.encode_chat((Message(role="user", content=r.text),))
      for r in requests
    ],
    8,
    params=params,
    step=0,
    tasks=range(groups),
  )
  return [
    pair
    for request, group in zip(requests, drawn, strict=True)
    for pair in itertools.combinations(
      [(request, tokenizer.decode(s.tokens)) for s in group], 2
    )
  ]


def main(_):
  """Prints both tables."""
  for name, phi in overlapping(_TEXTS.value, _SEED.value).items():
    mark = "overlaps" if overlaps(phi) else ""
    print(f"{name:16} all {phi[0]:+.2f}  good {phi[1]:+.2f}  {mark}")
  drawn = draw(_TEXTS.value, _SEED.value)
  for name, pairs in (
    ("texts of all kinds", random_pairs(drawn, 1)),
    ("the warm policy", policy_pairs(64, 1)),
  ):
    print(f"referee agreement, {name}: {referee_agreement(pairs):.3f}")


if __name__ == "__main__":
  app.run(main)
