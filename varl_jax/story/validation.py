"""Validation on the story world: the hidden expert's view of the policy.

The only module that imports `story.expert`. What it returns goes into the
metrics that people read, and nowhere else.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

from varl_jax.story import expert
from varl_jax.story.requests import StoryRequest, read_request
from varl_jax.story.world import held_out_requests
from varl_jax.types import Message, Rubric, Task

# Hidden checks that go along with a verifier of the patch library, by the
# measure and the thresholds of experiments/story_overlap.py.
OVERLAPPING: Final = frozenset(("fluent", "setback", "cohesive"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoryValidator:
  """Held-out requests and their hidden scores."""

  requests: tuple[StoryRequest, ...]

  @property
  def tasks(self) -> list[Task]:
    """The requests as tasks without criteria: nothing to leak."""
    return [
      Task(
        task_id=f"held-out-{index}",
        prompt=(Message(role="user", content=request.text),),
        rubric=Rubric(criteria=()),
      )
      for index, request in enumerate(self.requests)
    ]

  def score(
    self, tasks: Sequence[Task], answers: Sequence[Sequence[str | None]]
  ) -> dict[str, float]:
    """Means over answers, in [0, 1].

    Args:
      tasks: of `tasks`.
      answers: the answers to each; None counts 0 on every check.

    Returns:
      `eval/score` over all ten checks, `eval/raw` (each clipped, the same
      here), `eval/non_overlapping`, `eval/missing` and one `eval/check_NAME`
      a check.
    """
    rows = [
      expert.expert_checks(read_request(task.prompt[-1].content), answer or "")
      for task, group in zip(tasks, answers, strict=True)
      for answer in group
    ]
    missing = sum(answer is None for group in answers for answer in group)
    count = len(rows)
    apart = [name for name in expert.CHECKS if name not in OVERLAPPING]
    score = sum(map(expert.expert_score, rows)) / count
    found = {
      "eval/score": score,
      "eval/raw": score,
      "eval/non_overlapping": (
        sum(
          expert.expert_score({name: row[name] for name in apart})
          for row in rows
        )
        / count
      ),
      "eval/missing": missing / count,
    }
    for name in expert.CHECKS:
      found[f"eval/check_{name}"] = sum(row[name] for row in rows) / count
    return found


def make_validator(count: int, *, seed: int) -> StoryValidator:
  """The validator over `count` held-out requests."""
  return StoryValidator(requests=tuple(held_out_requests(count, seed=seed)))
