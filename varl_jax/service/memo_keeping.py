"""The memo's upkeep: observing probes, deciding, asking for a new text.

The rules are in `service.memo`. Reconstructed: probes of tasks written under
the memo in use are gathered until there are `PROBES` of them; their means are
one observation, and only then is a text decided on or rewritten, so that a
single lucky probe never is.
"""

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from varl_jax.config import MemoConfig
from varl_jax.llm.chat import ChatError
from varl_jax.roles.memo_optimizer import MemoOptimizer
from varl_jax.service import memo as memos
from varl_jax.service.calls import attempt
from varl_jax.service.evolution import exploit_text, patch_text
from varl_jax.service.failpoints import failpoint
from varl_jax.service.state import MemoProbe

PROBES: Final = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoStep:
  """A change of the memo's state.

  Attributes:
    state: the state after it.
    decision: see `memo.decide`.
    failure: of the optimizer's call, None without one.
  """

  state: memos.MemoState
  decision: str
  failure: ChatError | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoKeeper:
  """Keeps the memo.

  Attributes:
    optimizer: writes texts.
    config: objective and thresholds.
    seed: the run's seed.
  """

  optimizer: MemoOptimizer
  config: MemoConfig
  seed: int

  async def advance(
    self,
    state: memos.MemoState,
    probes: Sequence[MemoProbe],
    *,
    exploits: Sequence[Mapping[str, Any]],
    patches: Sequence[Mapping[str, Any]],
    ordered: Mapping[int, str] | None = None,
    op: str,
  ) -> MemoStep | None:
    """Takes an observation and what follows from it; None before there is one.

    Args:
      state: versions so far.
      probes: usable probes since the last observation.
      exploits: as in `evolution.exploit_text`.
      patches: as in `evolution.patch_text`.
      ordered: texts that orders were made under, as in `memo.propose`.
      op: unique name of the operation.
    """
    seen = [probe for probe in probes if probe.memo == state.current]
    if len(seen) < PROBES:
      return None
    if state.versions[state.current].status == "open":
      state = memos.observe(
        state, state.current, _observation(seen), self.config
      )
    state, decision = memos.decide(state, self.config)
    if not memos.may_rewrite(state, self.config):
      return MemoStep(state=state, decision=decision)
    failpoint("memo/observed")
    history = memos.memo_history(state, self.config)
    text = await attempt(
      self.optimizer.rewrite(
        memo=state.text,
        exploits=exploit_text(exploits),
        patches=patch_text(patches),
        history="\n".join(json.dumps(entry) for entry in history),
        op=op,
        seed=self.seed,
      )
    )
    if isinstance(text, ChatError):
      return MemoStep(state=state, decision=decision, failure=text)
    text = text[: self.config.max_chars]
    state = memos.propose(state, text, self.config, ordered=ordered)
    return MemoStep(state=state, decision=decision)


def memo_metrics(
  state: memos.MemoState, config: MemoConfig
) -> dict[str, float]:
  """Metrics of the memo in use; unmeasured ones are left out."""
  version = state.versions[state.current]
  metrics: dict[str, float] = {
    "memo/version": version.number,
    "memo/chars": len(version.text),
    "memo/rolled_back": sum(v.status == "rolled_back" for v in state.versions),
  }
  measured = [v for v in state.versions if v.observations]
  if measured:
    latest = measured[-1]
    metrics["memo/measured_version"] = latest.number
    metrics["memo/margin"] = latest.margin
    metrics["memo/honest"] = latest.honest
    metrics["memo/win_rate"] = latest.win_rate
    metrics["memo/over_restricting"] = float(
      memos.over_restricting(latest, config)
    )
    objective = memos.version_objective(state, latest.number, config)
    if objective is not None:
      metrics["memo/objective"] = objective
  return metrics


def _observation(probes: Sequence[MemoProbe]) -> memos.Observation:
  return memos.Observation(
    margin=statistics.fmean(probe.lead for probe in probes),
    honest=statistics.fmean(probe.honest for probe in probes),
    win_rate=statistics.fmean(probe.lead > 0 for probe in probes),
    probes=len(probes),
  )
