"""What a judge and a referee are worth, measured before a run relies on them.

A small built-in set: criteria whose truth a few lines of Python settle, on
answers that meet or miss them, and pairs of answers of which one is plainly
better. Three numbers come out, and a config may refuse a run below stated
levels (`config.GateConfig`). A weak local model fails here in minutes instead
of teaching a policy nonsense for days.
"""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Final

from varl_jax.llm.chat import ChatError
from varl_jax.roles.judge import Judge
from varl_jax.roles.referee import Referee
from varl_jax.types import Criterion, Message, Verdict


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
  """A criterion on an answer, with the truth.

  Attributes:
    request: what was asked.
    answer: the answer to it.
    criterion: what to look for.
    met: whether it is there.
  """

  request: str
  answer: str
  criterion: str
  met: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
  """Two answers to one request, the better one first."""

  request: str
  better: str
  worse: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
  """What was measured; rates are shares of 1, None where nothing could be read.

  Attributes:
    judge: the model's name.
    items: criteria judged.
    agreement: verdicts that are true; an undetermined one is not.
    chance: what a judge agrees with who always says the commoner thing.
    undetermined: verdicts without a majority.
    flip_rate: pairs of votes on one item that differ.
    pairs: pairs ranked, each in both orders.
    referee_right: rankings that put the better answer first.
    position_bias: how much more often the answer shown first wins than the one
      shown last, among rankings without a tie.
    referee_failed: rankings that could not be read.
  """

  judge: str
  items: int
  agreement: float
  chance: float
  undetermined: float
  flip_rate: float | None
  pairs: int
  referee_right: float
  position_bias: float | None
  referee_failed: float

  def shortfalls(
    self,
    *,
    min_agreement: float,
    max_flip_rate: float,
    max_position_bias: float,
  ) -> list[str]:
    """What falls short of the levels, a phrase each; [] when nothing does."""
    found = []
    if self.agreement < min_agreement:
      found.append(
        f"agreement with verifiers {self.agreement:.0%}, below"
        f" {min_agreement:.0%}"
      )
    if self.flip_rate is None or self.flip_rate > max_flip_rate:
      rate = "unknown" if self.flip_rate is None else f"{self.flip_rate:.0%}"
      found.append(f"votes that flip {rate}, above {max_flip_rate:.0%}")
    bias = self.position_bias
    if bias is None or abs(bias) > max_position_bias:
      told = "unknown" if bias is None else f"{bias:+.0%}"
      found.append(
        f"the referee's bias to a position {told}, beyond"
        f" {max_position_bias:.0%}"
      )
    return found


async def calibrate(
  judge: Judge, referee: Referee, *, seed: int, concurrency: int = 16
) -> Calibration:
  """Judges the built-in set.

  Args:
    judge: with as many votes as the run's.
    referee: ranks the pairs, in both orders.
    seed: the run's seed.
    concurrency: items or rankings at a time.

  Raises:
    ChatError: a fatal one, after which no call can succeed.
  """
  gate = asyncio.Semaphore(concurrency)

  async def verdict(place: int, item: Item) -> Verdict:
    async with gate:
      return await judge.judge(
        prompt=(Message(role="user", content=item.request),),
        answer=item.answer,
        criterion=Criterion(text=item.criterion, points=1),
        strict=False,
        op=f"calibration/item{place}",
        seed=seed,
      )

  async def first_shown_wins(place: int, pair: Pair, better: int) -> int | None:
    """1 where the answer shown first wins, -1 the last, 0 a tie."""
    texts = (
      [pair.better, pair.worse] if better == 0 else [pair.worse, pair.better]
    )
    async with gate:
      try:
        ranking = await referee.rank(
          prompt=(Message(role="user", content=pair.request),),
          answers=list(enumerate(texts)),
          order=(0, 1),
          op=f"calibration/pair{place}/{better}",
          seed=seed,
        )
      except ChatError as error:
        if error.fatal:
          raise
        return None
    if len(ranking.tiers) == 1:
      return 0
    return 1 if 0 in ranking.tiers[0] else -1

  verdicts = await asyncio.gather(
    *(verdict(place, item) for place, item in enumerate(ITEMS))
  )
  shown = [
    (p, pair, better) for p, pair in enumerate(PAIRS) for better in (0, 1)
  ]
  wins = await asyncio.gather(*(first_shown_wins(*args) for args in shown))
  return measure(judge.name, verdicts, list(zip(wins, shown, strict=True)))


def measure(
  name: str,
  verdicts: Sequence[Verdict],
  rankings: Sequence[tuple[int | None, tuple[int, Pair, int]]],
) -> Calibration:
  """The numbers of a calibration.

  Args:
    name: of the judge.
    verdicts: one an item, in order.
    rankings: 1, 0 or -1 as the answer shown first wins, ties or loses, None
      where nothing could be read; with (pair's index, pair, place of the better
      answer).
  """
  truths = [item.met for item in ITEMS]
  right = [v.met is truth for v, truth in zip(verdicts, truths, strict=True)]
  flips = [
    one != other
    for verdict in verdicts
    for place, one in enumerate(verdict.votes)
    for other in verdict.votes[place + 1 :]
  ]
  decided = [win for win, _ in rankings if win]
  better_won = [
    win == (1 if better == 0 else -1) for win, (_, _, better) in rankings
  ]
  return Calibration(
    judge=name,
    items=len(ITEMS),
    agreement=_mean(right),
    chance=max(_mean(truths), 1 - _mean(truths)),
    undetermined=_mean([v.met is None for v in verdicts]),
    flip_rate=_mean(flips) if flips else None,
    pairs=len(PAIRS),
    referee_right=_mean(better_won),
    position_bias=_mean(decided) if decided else None,
    referee_failed=_mean([win is None for win, _ in rankings]),
  )


def _mean(values: Sequence[float]) -> float:
  return sum(values) / len(values)


# Requests with two answers, and criteria with what decides them on any text.
_TEXTS: Final = (
  (
    "Write a short note that reminds a colleague of the meeting.",
    (
      "Dear Ana, a reminder: we meet on Tuesday at 10:30 in room 4. Please"
      " bring the draft budget. Thank you!",
      "hey dont forget we have that thing soon, see you there",
    ),
    (
      ("The note names a day of the week.", lambda t: "Tuesday" in t),
      ("The note gives a time of day.", lambda t: "10:30" in t),
      ("The note says what to bring.", lambda t: "bring" in t),
      ("The note is written without any digit.", lambda t: not _digits(t)),
    ),
  ),
  (
    "How do I keep cut flowers fresh?",
    (
      "1. Trim the stems.\n2. Change the water every two days.\n3. Keep the"
      " vase away from direct sun.",
      "Put them in a vase with sugar water and leave them on a sunny sill; that"
      " is all there is to it.",
    ),
    (
      ("The answer is a numbered list.", lambda t: t.startswith("1.")),
      ("The answer tells to trim the stems.", lambda t: "Trim" in t),
      ("The answer mentions sugar.", lambda t: "sugar" in t),
      ("The answer has more than one line.", lambda t: "\n" in t),
    ),
  ),
  (
    "Explain in at most 25 words why the sky is blue.",
    (
      "Air scatters short wavelengths of sunlight more than long ones, so blue"
      " light reaches us from everywhere.",
      "The sky is blue because the sea is blue and the sky reflects the sea,"
      " which has been known for a very long time to sailors and to fishermen"
      " all over the world.",
    ),
    (
      ("The answer has at most 25 words.", lambda t: len(t.split()) <= 25),
      ("The answer mentions scattering.", lambda t: "scatter" in t),
      ("The answer mentions the sea.", lambda t: "sea" in t),
      ("The answer mentions sailors.", lambda t: "sailors" in t),
    ),
  ),
  (
    "Is 91 a prime number? Answer yes or no, then say why.",
    (
      "No. 91 is 7 times 13, so it has divisors other than 1 and itself.",
      "Yes, since nothing but 1 and 91 divides it.",
    ),
    (
      ("The answer begins with the word No.", lambda t: t.startswith("No")),
      ("The answer names the factors 7 and 13.", lambda t: "7 times 13" in t),
      (
        "The answer claims that 91 is a prime number.",
        lambda t: t.startswith("Yes"),
      ),
      ("The answer contains the number 91.", lambda t: "91" in t),
    ),
  ),
)


def _digits(text: str) -> bool:
  return any(letter.isdigit() for letter in text)


def _items() -> tuple[Item, ...]:
  return tuple(
    Item(request=request, answer=answer, criterion=criterion, met=check(answer))
    for request, answers, criteria in _TEXTS
    for answer in answers
    for criterion, check in criteria
  )


ITEMS: Final = _items()
PAIRS: Final = (
  *(
    Pair(request=request, better=better, worse=worse)
    for request, (better, worse), _ in _TEXTS
  ),
  Pair(
    request="Name the capital of France.",
    better="Paris.",
    worse="It could be one of many cities; opinions differ on that.",
  ),
  Pair(
    request="Translate to German: good morning.",
    better="Guten Morgen.",
    worse="Good night, in German.",
  ),
)
