"""How far the blind referee can be trusted, in numbers; pure logic.

The paper's list of these measures is not in its text; ours is reconstructed. A
pair is *decisive* when the referee put its answers in different tiers and their
scores differ. Preferences are shares over pairs in different tiers, 0.5 meaning
none. All are of the groups shown to the referee, which are no sample of the
step's where others were skipped (`referee/skipped`).
"""

import dataclasses
import itertools
from collections.abc import Collection, Iterable
from typing import Final

TOLERANCE: Final = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranked:
  """A usable ranking of one group.

  Attributes:
    scores: training score of each answer, None where unscorable.
    lengths: characters of each answer.
    tiers: indices of answers, the best tier first.
    order: indices in the order the referee saw them.
    reversed_tiers: tiers of a second ranking in the reversed order, None where
      it was not taken.
  """

  scores: tuple[float | None, ...]
  lengths: tuple[int, ...]
  tiers: tuple[tuple[int, ...], ...]
  order: tuple[int, ...]
  reversed_tiers: tuple[tuple[int, ...], ...] | None = None


def referee_metrics(
  ranked: Collection[Ranked],
  *,
  refereed: int,
  failures: int,
  skipped: int | None = None,
) -> dict[str, float]:
  """Metrics of a step; what nothing was measured for is left out.

  Args:
    ranked: the usable rankings.
    refereed: groups shown to the referee.
    failures: failed calls, those in reversed order too.
    skipped: groups that it was not asked about, None when it is asked about all
      by its settings.
  """
  metrics: dict[str, float] = {
    "referee/groups": refereed,
    "referee/failures": failures,
  }
  if skipped is not None:
    metrics["referee/skipped"] = skipped
  pairs = [pair for ranking in ranked for pair in _pairs(ranking)]
  decisive = [pair.agrees for pair in pairs if pair.agrees is not None]
  metrics["referee/decisive_pairs"] = len(decisive)
  _share(metrics, "referee/usable", len(ranked), refereed)
  _share(metrics, "referee/concordance", sum(decisive), len(decisive))
  _share(
    metrics,
    "referee/discordance",
    len(decisive) - sum(decisive),
    len(decisive),
  )
  first = [pair.first_preferred for pair in pairs]
  _share(metrics, "referee/first_preferred", sum(first), len(first))
  longer = [p.longer_preferred for p in pairs if p.longer_preferred is not None]
  _share(metrics, "referee/longer_preferred", sum(longer), len(longer))
  abstained = sum(len(ranking.tiers) == 1 for ranking in ranked)
  _share(metrics, "referee/abstentions", abstained, len(ranked))
  turned = [flip for ranking in ranked for flip in _flips(ranking)]
  _share(metrics, "referee/unstable_pairs", sum(turned), len(turned))
  return metrics


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pair:
  """Two answers of different tiers; `agrees` is None with equal scores."""

  agrees: bool | None
  first_preferred: bool
  longer_preferred: bool | None


def _pairs(ranking: Ranked) -> Iterable[_Pair]:
  place = {index: at for at, index in enumerate(ranking.order)}
  for upper, lower in itertools.combinations(ranking.tiers, 2):
    for better, worse in itertools.product(upper, lower):
      high, low = ranking.scores[better], ranking.scores[worse]
      agrees = None
      if high is not None and low is not None and abs(high - low) > TOLERANCE:
        agrees = high > low
      longer = None
      if ranking.lengths[better] != ranking.lengths[worse]:
        longer = ranking.lengths[better] > ranking.lengths[worse]
      yield _Pair(
        agrees=agrees,
        first_preferred=place[better] < place[worse],
        longer_preferred=longer,
      )


def _flips(ranking: Ranked) -> Iterable[bool]:
  """For each pair, whether the reversed order changed its relation."""
  if ranking.reversed_tiers is None:
    return
  once = {i: rank for rank, tier in enumerate(ranking.tiers) for i in tier}
  again = {
    i: rank for rank, tier in enumerate(ranking.reversed_tiers) for i in tier
  }
  for a, b in itertools.combinations(sorted(once), 2):
    yield _sign(once[a] - once[b]) != _sign(again[a] - again[b])


def _sign(value: int) -> int:
  return (value > 0) - (value < 0)


def _share(
  metrics: dict[str, float], key: str, count: float, total: int
) -> None:
  if total:
    metrics[key] = count / total
