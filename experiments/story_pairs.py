r"""What checking exploit pairs before their repair changes on the story world.

    python -m experiments.story_pairs --seeds=6 --steps=30 \
        --out=experiments/results/story_pairs.json

Runs the whole generation service for both switches of `patch`. In place of a
language model answers a policy with four parameters, one for each kind of text
of the world's grammar, that is trained by the same advantages; so this takes
minutes, and its scores are not those of `compare_arms`, where `rri_verified`
and `rri_stop_equal` train the world's real policy. Two numbers count: how many
of the repaired pairs the hidden expert orders like the referee, and the hidden
score of what the policy writes at the end.
"""

import contextlib
import dataclasses
import math
import pathlib
import random
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Final

from absl import app, flags

from configs.story import get_config
from experiments import arm_results
from varl_jax.config import Config, from_config_dict
from varl_jax.llm.seeds import derive_seed
from varl_jax.methods import METHODS
from varl_jax.roles.bundle import make_roles
from varl_jax.service.evidence import CaseRecord
from varl_jax.service.generation_service import GenerationService
from varl_jax.service.store import Store
from varl_jax.story import expert, grammar, world
from varl_jax.story.requests import draw_request, read_request
from varl_jax.types import GradedGroup, Rollout, Task

RESULT: Final = "experiments/results/story_pairs.json"
KINDS: Final[tuple[grammar.Kind, ...]] = ("good", "thin", "list", "ramble")
SWITCHES: Final[Mapping[str, Mapping[str, bool]]] = {
  "off": {},
  "verify_pairs": {"verify_pairs": True},
  "stop_equal": {"stop_equal": True},
  "both": {"verify_pairs": True, "stop_equal": True},
}
SHOWN: Final = {
  "hidden": "hidden score of the policy at the end",
  "reward": "its own reward at the end",
  "cases": "exploit cases",
  "checked": "pairs checked",
  "repaired": "cases taken to repair",
  "right": "of these, better by the expert",
  "patched": "cases patched",
  "accepted": "criteria accepted",
  "gap_before": "lead before a patch",
  "gap_after": "lead after it",
}
# How far one step moves the policy, and texts that a kind's score is a mean of.
RATE: Final = 2.0
TEXTS: Final = 400

flags.adopt_module_key_flags(arm_results)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kinds:
  """A policy that chooses the kind of text it writes; `logits` one a kind."""

  logits: tuple[float, ...] = (0.0,) * len(KINDS)

  @property
  def shares(self) -> list[float]:
    """How often each kind is written."""
    top = max(self.logits)
    weights = [math.exp(logit - top) for logit in self.logits]
    return [weight / sum(weights) for weight in weights]

  def answers(
    self, task: Task, count: int, *, seed: int, step: int
  ) -> tuple[list[int], list[Rollout]]:
    """Kinds and rollouts of a group."""
    name = f"answers/{step}/{task.task_id}"
    rng = random.Random(derive_seed(seed, name))
    request = read_request(task.prompt[-1].content)
    kinds = rng.choices(range(len(KINDS)), self.shares, k=count)
    texts = [grammar.write(KINDS[kind], request, rng) for kind in kinds]
    return kinds, [
      Rollout(
        task_id=task.task_id,
        sample=sample,
        answer=text,
        tokens=(0,),
        logprobs=(0.0,),
        mask=(1,),
        finish="stop",
      )
      for sample, text in enumerate(texts)
    ]

  def trained(
    self, kinds: Mapping[str, list[int]], groups: Sequence[GradedGroup]
  ) -> "Kinds":
    """One step along the policy gradient, advantages less the group's mean."""
    shares, gradient = self.shares, [0.0] * len(KINDS)
    count = 0
    for group in groups:
      scores = [answer.score for answer in group.answers]
      kept = [score for score in scores if score is not None]
      for kind, score in zip(kinds[group.task.task_id], scores, strict=True):
        if score is None:
          continue
        advantage = score - math.fsum(kept) / len(kept)
        count += 1
        for index, share in enumerate(shares):
          gradient[index] += advantage * ((index == kind) - share)
    moved = [
      logit + RATE * slope / max(1, count)
      for logit, slope in zip(self.logits, gradient, strict=True)
    ]
    return Kinds(logits=tuple(moved))


def hidden(task_text: str, answer: str) -> float:
  """The hidden expert's score of an answer."""
  request = read_request(task_text)
  return expert.expert_score(expert.expert_checks(request, answer))


def kind_scores() -> list[float]:
  """Mean hidden score of each kind, over held-out requests."""
  found = []
  for kind in KINDS:
    rng = random.Random(f"kinds/{kind}")
    scores = []
    for _ in range(TEXTS):
      request = draw_request(rng, validation=True)
      text = grammar.write(kind, request, rng)
      scores.append(expert.expert_score(expert.expert_checks(request, text)))
    found.append(math.fsum(scores) / TEXTS)
  return found


def settings(seed: int, switches: Mapping[str, bool]) -> Config:
  """The story's config with some of the switches on."""
  tree = get_config("rri").to_dict()
  tree["seed"] = seed
  tree["patch"] |= switches
  return from_config_dict(tree)


def open_service(config: Config, store: Store) -> GenerationService:
  """The service of the story world on a store."""
  roles = make_roles(world.CHAT, "story", config.judge, world.CHECKS)
  described = dataclasses.replace(config, description=world.DESCRIPTION)
  return METHODS["rri"](
    described,
    roles=roles,
    store=store,
    checks=world.CHECKS,
    verifiers=world.VERIFIERS,
  )


def one_run(
  seed: int, switches: Mapping[str, bool], steps: int, worth: list[float]
) -> dict[str, float]:
  """Trains once; the measures of `SHOWN`, NaN where there was nothing."""
  config = settings(seed, switches)
  policy, reports = Kinds(), []
  with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
    store = Store(pathlib.Path(folder) / "service.sqlite")
    stack.enter_context(contextlib.closing(store))
    service = open_service(config, store)
    stack.enter_context(contextlib.closing(service))
    for step in range(1, steps + 1):
      tasks = service.poll(step, config.train.tasks_per_step)
      drawn = [
        policy.answers(task, config.train.samples, seed=seed, step=step)
        for task in tasks
      ]
      groups = service.grade(
        step, [(t, r) for t, (_, r) in zip(tasks, drawn, strict=True)]
      )
      kinds = {t.task_id: k for t, (k, _) in zip(tasks, drawn, strict=True)}
      policy = policy.trained(kinds, groups)
      scores = [a.score for g in groups for a in g.answers]
      kept = [score for score in scores if score is not None]
      reports.append({"reward": math.fsum(kept) / len(kept)})
      reports[-1] |= service.report(step, groups)
    cases = service.cases()
  return _measures(cases, reports) | {
    "hidden": math.fsum(
      share * score for share, score in zip(policy.shares, worth, strict=True)
    )
  }


def _measures(
  cases: Sequence[CaseRecord], reports: Sequence[Mapping[str, float]]
) -> dict[str, float]:
  """Of the solver's own cases."""
  own = [record for record in cases if record.case.source == "on_policy"]
  queued = [record for record in own if record.queued]
  right = [
    hidden(_asked(record), record.case.honest.answer or "")
    > hidden(_asked(record), record.case.exploit.answer or "")
    for record in queued
  ]
  last = [report["reward"] for report in reports[-5:]]
  return {
    "reward": math.fsum(last) / len(last),
    "cases": float(len(own)),
    "checked": float(sum(bool(record.pair) for record in own)),
    "repaired": float(len(queued)),
    "right": sum(right) / len(right) if right else math.nan,
    "patched": float(sum(record.repaired for record in own)),
    "accepted": math.fsum(r.get("patch/accepted", 0) for r in reports),
    **{
      f"gap_{side}": _mean(
        [r[key] for r in reports if (key := f"patch/lead_{side}") in r]
      )
      for side in ("before", "after")
    },
  }


def _asked(record: CaseRecord) -> str:
  return record.case.task.prompt[-1].content


def _mean(values: Sequence[float]) -> float:
  return math.fsum(values) / len(values) if values else math.nan


def page(result: Mapping[str, Any]) -> str:
  """The result as Markdown, mean and standard error over seeds."""
  arms = result["arms"]
  lines = [
    "# Pairs checked before their repair",
    "",
    "Story world, an offline simulation with a policy of four parameters:"
    f" seeds {result['seeds'][0]} to {result['seeds'][-1]},"
    f" {result['steps']} steps, mean +- standard error over seeds. Made by"
    " `python -m experiments.story_pairs`.",
    "",
    "| | " + " | ".join(arms) + " |",
    "|---|" + "---|" * len(arms),
  ]
  for key, told in SHOWN.items():
    cells = [arm_results.cell(arm[key]) for arm in arms.values()]
    lines.append(f"| {told} | {' | '.join(cells)} |")
  lines += ["", "| hidden, paired difference | mean | standard error |"]
  lines.append("|---|---|---|")
  for name, gap in result["paired"].items():
    error = gap["standard_error"]
    shown = "-" if error is None else f"{error:.3f}"
    lines.append(f"| {name} | {gap['mean']:+.3f} | {shown} |")
  return "\n".join(lines) + "\n"


def measure(seeds: Sequence[int], steps: int) -> dict[str, Any]:
  """All settings on all seeds."""
  worth = kind_scores()
  arms: dict[str, dict[str, list[float]]] = {}
  for name, switches in SWITCHES.items():
    rows = [one_run(seed, switches, steps, worth) for seed in seeds]
    arms[name] = {key: [row[key] for row in rows] for key in SHOWN}
    print(name, "is done", flush=True)
  return arm_results.without_nan(
    {
      "arms": arms,
      "paired": {
        f"{name} - off": arm_results.paired(
          arms[name]["hidden"], arms["off"]["hidden"]
        )
        for name in SWITCHES
        if name != "off"
      },
      "kinds": dict(zip(KINDS, worth, strict=True)),
      "seeds": list(seeds),
      "steps": steps,
      "command": (
        f"python -m experiments.story_pairs --first_seed={seeds[0]}"
        f" --seeds={len(seeds)} --steps={steps}"
      ),
    }
  )


def main(_):
  """Measures and writes."""
  result = measure(arm_results.seeds(), arm_results.STEPS.value)
  out = pathlib.Path(arm_results.OUT.value or RESULT)
  arm_results.write(result, out, page(result))
  print(page(result))


if __name__ == "__main__":
  app.run(main)
