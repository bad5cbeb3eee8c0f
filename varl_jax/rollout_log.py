"""What a run keeps of the answers it was trained on, for people to read.

`rollouts.jsonl` of a run's folder has one line a step: a few groups with their
criteria and how many answers met each, and of these groups some answers token
by token. Those of exploit cases come first, the widest lead before others; the
rest are drawn at random, the same after a restart. `report` settings bound how
many and how long; nothing reads the file but reports.
"""

import dataclasses
import pathlib
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from varl_jax.config import ReportConfig
from varl_jax.rollouts import Group
from varl_jax.rubrics.scoring import by_criterion
from varl_jax.service.evidence import CaseRecord
from varl_jax.step_lines import StepLines
from varl_jax.types import GradedAnswer, GradedGroup, Rollout, to_json

FILE_NAME: Final = "rollouts.jsonl"
# What a tokenizer makes of bytes that are no whole character.
_BROKEN: Final = "\ufffd"
# Tokens of one character, at most.
_LONGEST_CHARACTER: Final = 8

Decode = Callable[[Sequence[int]], str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloutLog:
  """Keeps answers of a run.

  Attributes:
    lines: the file.
    config: how much is kept.
    decode: text of token ids.
    seed: of the run.
  """

  lines: StepLines
  config: ReportConfig
  decode: Decode
  seed: int

  def write(
    self,
    step: int,
    groups: Sequence[Group],
    graded: Sequence[GradedGroup],
    cases: Sequence[CaseRecord],
  ) -> None:
    """Appends the line of a step.

    Args:
      step: the step.
      groups: its rollouts.
      graded: the same groups with their verdicts.
      cases: exploit cases, the widest lead first; those of other steps and of
        the adversary are left aside.

    Raises:
      RecordError: it could not be written; the lines before it are whole.
    """
    wanted = chosen_answers(
      graded,
      cases,
      count=self.config.rollouts,
      rng=random.Random(f"{self.seed}/{step}"),
    )
    by_task = {group.task.task_id: group for group in groups}
    kept = []
    for group in graded:
      samples = wanted.get(group.task.task_id, ())
      if samples:
        view = group_view(group)
        rollouts = by_task[group.task.task_id].rollouts
        view["rollouts"] = [
          self._rollout(rollouts[i], group.answers[i]) for i in samples
        ]
        kept.append(view)
    self.lines.write({"step": step, "groups": kept})

  def rewind(self, step: int) -> None:
    """Drops what was kept of later steps."""
    self.lines.rewind(step)

  def _rollout(self, rollout: Rollout, graded: GradedAnswer) -> dict[str, Any]:
    count = self.config.max_tokens
    return {
      "sample": rollout.sample,
      "score": graded.score,
      "finish": rollout.finish,
      "tokens": len(rollout.tokens),
      "trained": sum(rollout.mask),
      "pieces": token_pieces(rollout.tokens[:count], self.decode),
      "logprobs": [round(value, 3) for value in rollout.logprobs[:count]],
      "mask": list(rollout.mask[:count]),
      "met": [verdict.met for verdict in graded.verdicts],
    }


def open_log(
  workdir: pathlib.Path, config: ReportConfig, *, decode: Decode, seed: int
) -> RolloutLog | None:
  """The log of a run's folder; None where nothing is to be kept.

  Raises:
    MetricsError: the file is damaged.
  """
  if not config.rollouts:
    return None
  return RolloutLog(
    lines=StepLines(workdir / FILE_NAME),
    config=config,
    decode=decode,
    seed=seed,
  )


def chosen_answers(
  graded: Sequence[GradedGroup],
  cases: Sequence[CaseRecord],
  *,
  count: int,
  rng: random.Random,
) -> dict[str, list[int]]:
  """Which answers are kept: indices in their groups, by task.

  Both answers of exploit cases first, then the best and the worst of groups
  drawn at random, until there are `count`.
  """
  places = {
    group.task.task_id: {a.sample: i for i, a in enumerate(group.answers)}
    for group in graded
  }
  steps = {group.step for group in graded}
  picked: dict[str, list[int]] = {}

  def pick(task_id: str, indices: Sequence[int]) -> None:
    total = sum(len(found) for found in picked.values())
    own = picked.setdefault(task_id, [])
    fresh = [i for i in dict.fromkeys(indices) if i not in own]
    own += fresh[: max(0, count - total)]

  for record in cases:
    case = record.case
    of = places.get(case.task.task_id, {})
    pair = (case.exploit.sample, case.honest.sample)
    if case.step in steps and case.source == "on_policy":
      pick(case.task.task_id, [of[sample] for sample in pair if sample in of])
  for group in rng.sample(list(graded), len(graded)):
    scored = [
      (answer.score, i)
      for i, answer in enumerate(group.answers)
      if answer.score is not None
    ]
    if scored:
      pick(group.task.task_id, [max(scored)[1], min(scored)[1]])
  return {task_id: sorted(found) for task_id, found in picked.items() if found}


def group_view(group: GradedGroup) -> dict[str, Any]:
  """A group's task, its criteria with how they fared, its scores."""
  rubric = group.task.rubric
  table = [
    by_criterion(rubric, answer.verdicts)
    for answer in group.answers
    if answer.verdicts
  ]
  criteria = []
  for index, criterion in enumerate(rubric.criteria):
    column = [row[index] for row in table]
    found = [None if verdict is None else verdict.met for verdict in column]
    criteria.append(
      {
        **to_json(criterion),
        "met": found.count(True),
        "unmet": found.count(False),
      }
    )
  return {
    "task_id": group.task.task_id,
    "version": rubric.version,
    "prompt": to_json(group.task.prompt),
    "criteria": criteria,
    "scores": [answer.score for answer in group.answers],
  }


def token_pieces(tokens: Sequence[int], decode: Decode) -> list[str]:
  """The text of each token; joined, they are the text of all.

  A character that several tokens spell stands at the last of them, the others
  are "".
  """
  pieces: list[str] = []
  start = 0  # of a window that begins at a whole character
  pending = 0  # tokens at its end that have given no text yet
  for end in range(1, len(tokens) + 1):
    before = decode(tokens[start : end - 1 - pending])
    now = decode(tokens[start:end])
    broken = now.endswith(_BROKEN) and pending < _LONGEST_CHARACTER
    if broken and end < len(tokens):
      pieces.append("")
      pending += 1
      continue
    whole = now.startswith(before)
    pieces.append(
      now[len(before) :] if whole else decode(tokens[end - 1 - pending : end])
    )
    start, pending = end - 1 - pending, 0
  return pieces
