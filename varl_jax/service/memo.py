"""Versions of the adversary memo and their objective (paper appendix D).

The memo is text appended to the generation prompt. A version v is measured by
probes of the tasks it wrote, and its objective (reconstructed, lower is
better) is

    J(v) = max(0, mean margin_v - target)
           + kappa * max(0, mean honest_v - honest_0 - tau)

with honest_0 the honest mean of the first measured version, fixed for the run:
without the second term a memo could win by making rubrics easy, and with a
moving baseline it could do so in small steps.

States are frozen and made of plain values (`types.to_json`, `from_json`).
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from varl_jax.config import MemoConfig

Status = Literal["open", "kept", "rolled_back", "rewound"]
Decision = Literal["wait", "settled", "commit", "rollback"]

TOLERANCE: Final = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Observation:
  """Means over the probes of one interval, of tasks of one memo version.

  Attributes:
    margin: mean of D = exploit score - honest score.
    honest: mean honest score.
    win_rate: share of probes whose exploit scored above the honest answer.
    probes: how many.
  """

  margin: float
  honest: float
  win_rate: float = 0.0
  probes: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoVersion:
  """One text; `open` until it is decided on.

  One that is `rewound` was lost in a rewind while orders made under it were
  kept; it only keeps its number from being given to another text.
  """

  number: int
  text: str
  observations: tuple[Observation, ...] = ()
  status: Status = "open"

  @property
  def margin(self) -> float:
    """Mean margin; NaN when unmeasured."""
    return _mean([seen.margin for seen in self.observations])

  @property
  def honest(self) -> float:
    """Mean honest score; NaN when unmeasured."""
    return _mean([seen.honest for seen in self.observations])

  @property
  def win_rate(self) -> float:
    """Mean win rate of the adversary; NaN when unmeasured."""
    return _mean([seen.win_rate for seen in self.observations])


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoState:
  """All versions by number, the one in use, and honest_0 once it is known."""

  versions: tuple[MemoVersion, ...] = (MemoVersion(number=0, text=""),)
  current: int = 0
  honest_baseline: float | None = None

  @property
  def text(self) -> str:
    """The memo in use."""
    return self.versions[self.current].text


def memo_objective(
  margin: float,
  honest: float,
  honest_baseline: float,
  *,
  target_margin: float = 0.0,
  kappa: float = 2.0,
  tolerance: float = 0.02,
) -> float:
  """J of a version's means; at least 0, lower is better."""
  leniency = max(0.0, honest - honest_baseline - tolerance)
  return max(0.0, margin - target_margin) + kappa * leniency


def version_objective(
  state: MemoState, number: int, config: MemoConfig
) -> float | None:
  """J of a version, None before it has enough observations."""
  version = state.versions[number]
  if not measured(version, config) or state.honest_baseline is None:
    return None
  return memo_objective(
    version.margin,
    version.honest,
    state.honest_baseline,
    target_margin=config.target_margin,
    kappa=config.kappa,
    tolerance=config.tolerance,
  )


def measured(version: MemoVersion, config: MemoConfig) -> bool:
  """Whether a version has the observations a decision needs."""
  return len(version.observations) >= config.observations


def over_restricting(version: MemoVersion, config: MemoConfig) -> bool:
  """Whether honest answers fare so badly that the memo must not tighten."""
  return (
    measured(version, config) and version.honest < config.min_honest - TOLERANCE
  )


def observe(
  state: MemoState, number: int, seen: Observation, config: MemoConfig
) -> MemoState:
  """Adds a measurement of version `number`.

  The first version to have enough observations sets the honest baseline.

  Raises:
    ValueError: a mean is not finite.
    IndexError: no such version.
  """
  if not (math.isfinite(seen.margin) and math.isfinite(seen.honest)):
    raise ValueError(f"A memo observation is finite, got {seen}.")
  version = state.versions[number]
  version = dataclasses.replace(
    version, observations=(*version.observations, seen)
  )
  baseline = state.honest_baseline
  if baseline is None and measured(version, config):
    baseline = version.honest
  return dataclasses.replace(
    _with_version(state, version), honest_baseline=baseline
  )


def decide(state: MemoState, config: MemoConfig) -> tuple[MemoState, Decision]:
  """Settles the version in use once it is measured.

  Returns:
    The next state and `wait` (too few observations), `settled` (decided
    before), `commit`, or `rollback`: J is above the best earlier version's by
    more than the tolerance, and that version is in use again.
  """
  version = state.versions[state.current]
  if version.status != "open":
    return state, "settled"
  objective = version_objective(state, version.number, config)
  if objective is None:
    return state, "wait"
  best = best_version(state, config, before=version.number)
  if best is not None:
    reference = version_objective(state, best, config)
    assert reference is not None
    if objective > reference + config.tolerance + TOLERANCE:
      dropped = dataclasses.replace(version, status="rolled_back")
      state = _with_version(state, dropped)
      return dataclasses.replace(state, current=best), "rollback"
  kept = dataclasses.replace(version, status="kept")
  return _with_version(state, kept), "commit"


def best_version(
  state: MemoState, config: MemoConfig, *, before: int
) -> int | None:
  """The kept version below `before` with the least J, the newest at ties."""
  found = [
    (objective, -version.number)
    for version in state.versions[:before]
    if version.status == "kept"
    and (objective := version_objective(state, version.number, config))
    is not None
  ]
  return -min(found)[1] if found else None


def may_rewrite(state: MemoState, config: MemoConfig) -> bool:
  """Whether the memo optimizer may write a version after the one in use.

  Not while that one is undecided, and not when it is over-restricting: a next
  version would tighten further.
  """
  version = state.versions[state.current]
  return version.status == "kept" and not over_restricting(version, config)


def propose(
  state: MemoState,
  text: str,
  config: MemoConfig,
  *,
  ordered: Mapping[int, str] | None = None,
) -> MemoState:
  """Puts a new version in use; a text that was tried before changes nothing.

  One that was rolled back would only be measured and rolled back once more.

  Args:
    state: versions so far.
    text: the new one's.
    config: its longest.
    ordered: texts that orders were made under, by number. A number of theirs is
      never given to another text, whether a rewind took the version or not.

  Raises:
    ValueError: the text is longer than `config.max_chars`.
  """
  if len(text) > config.max_chars:
    raise ValueError(
      f"A memo has at most {config.max_chars} characters, got {len(text)}."
    )
  for version in state.versions:
    if version.text == text and version.status != "rewound":
      return state
  versions, known = list(state.versions), ordered or {}
  while known.get(len(versions), text) != text:
    number = len(versions)
    versions.append(
      MemoVersion(number=number, text=known[number], status="rewound")
    )
  # The same text once more gets its old number back.
  number = next(
    (version.number for version in versions if version.text == text),
    len(versions),
  )
  versions[number : number + 1] = [MemoVersion(number=number, text=text)]
  return dataclasses.replace(state, versions=tuple(versions), current=number)


def memo_history(state: MemoState, config: MemoConfig) -> list[dict[str, Any]]:
  """Every measured version as plain values, for prompts, logs and reports."""
  return [
    {
      "version": version.number,
      "status": version.status,
      "in_use": version.number == state.current,
      "objective": version_objective(state, version.number, config),
      "margin": version.margin,
      "honest": version.honest,
      "win_rate": version.win_rate,
      "over_restricting": over_restricting(version, config),
      "text": version.text,
    }
    for version in state.versions
    if version.observations
  ]


def _with_version(state: MemoState, version: MemoVersion) -> MemoState:
  versions = list(state.versions)
  versions[version.number] = version
  return dataclasses.replace(state, versions=tuple(versions))


def _mean(values: Sequence[float]) -> float:
  return math.fsum(values) / len(values) if values else math.nan
