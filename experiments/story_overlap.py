"""How far the hidden expert, the patch library and the referee go together.

    python -m experiments.story_overlap

Over texts of all four kinds for training requests it prints, for each hidden
check, the verifier it correlates with most (phi coefficient), and how often the
referee's order agrees with the hidden score on clear pairs (a difference of at
least 0.2). `story.validation.OVERLAPPING` lists the checks above 0.6.
"""

import random

from absl import app, flags
import numpy as np

from varl_jax.story import criteria, expert, grammar, readers, world
from varl_jax.story.requests import StoryRequest, draw_request

CLEAR = 0.2
OVERLAP = 0.6

_TEXTS = flags.DEFINE_integer("texts", 4000, "Texts drawn.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the draw.")


def draw(count: int, seed: int) -> list[tuple[StoryRequest, str]]:
  """Requests with a text each, the kinds in equal shares."""
  rng = random.Random(seed)
  drawn = []
  for index in range(count):
    request = draw_request(rng, validation=False)
    kind = ("good", "thin", "list", "ramble")[index % 4]
    drawn.append((request, grammar.write(kind, request, rng)))
  return drawn


def correlations(drawn: list[tuple[StoryRequest, str]]) -> dict[str, dict]:
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


def referee_agreement(drawn: list[tuple[StoryRequest, str]]) -> float:
  """Share of clear pairs that the referee's taste orders like the expert."""
  rng = random.Random(1)
  agree = total = 0
  worth = [
      (
          expert.expert_score(expert.expert_checks(request, text)),
          readers.quality(text),
      )
      for request, text in drawn
  ]
  for _ in range(20 * len(worth)):
    (hidden_a, taste_a), (hidden_b, taste_b) = rng.sample(worth, 2)
    if abs(hidden_a - hidden_b) < CLEAR or taste_a == taste_b:
      continue
    total += 1
    agree += (hidden_a > hidden_b) == (taste_a > taste_b)
  return agree / total


def main(_):
  drawn = draw(_TEXTS.value, _SEED.value)
  for name, row in correlations(drawn).items():
    kind = max(row, key=lambda kind: abs(row[kind]))
    mark = "overlaps" if abs(row[kind]) > OVERLAP else ""
    print(f"{name:16} {row[kind]:+.2f} {kind:14} {mark}")
  print(f"referee agreement on clear pairs: {referee_agreement(drawn):.3f}")


if __name__ == "__main__":
  app.run(main)
