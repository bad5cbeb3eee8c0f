"""What a run will ask of its frozen models, before anything is paid.

    python -m varl_jax.main --config=... --plan

Beside each line stands the formula its calls come from. The column "at most"
is what the settings allow: every probe runs all rounds of repair, every step
repairs as many cases as it may, every rubric is full. What comes on top in both
columns are second calls for replies that cannot be read and the retries of
endpoints; criteria that a program checks need no judge and are counted all the
same. Tokens are characters over four. Loads neither jax nor a model.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import rich.console
import rich.table

from varl_jax.config import Config, ConfigError
from varl_jax.domains import load_domain
from varl_jax.plan_baselines import PLANNERS
from varl_jax.plan_lines import PARTS, Planner
from varl_jax.plan_terms import Assumptions, Line


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """All lines of a run, with what they rest on."""

  name: str
  steps: int
  lines: tuple[Line, ...]
  assumptions: Assumptions
  derived: Mapping[str, float]

  def total(self, field: str, role: str | None = None) -> float:
    """A step's sum of a field over one role, or all.

    Args:
      field: `calls`, `most`, `cost`, `most_cost`, or the tokens `prompt` and
        `reply` of all calls.
      role: one of the lines' roles.
    """
    weigh = field in ("prompt", "reply")
    return math.fsum(
      getattr(line, field) * (line.calls if weigh else 1)
      for line in self.lines
      if role in (None, line.role)
    )

  @property
  def unpriced(self) -> tuple[str, ...]:
    """Models without a price, by name."""
    paid = [line.endpoint for line in self.lines if line.endpoint.model]
    return tuple(
      dict.fromkeys(e.model for e in paid if not e.price_in + e.price_out)
    )

  def to_dict(self) -> dict[str, Any]:
    """Everything as plain values; sums under `step` and `run`."""
    fields = ("calls", "most", "prompt", "reply", "cost", "most_cost")
    step = {field: self.total(field) for field in fields}
    return {
      "name": self.name,
      "steps": self.steps,
      "step": step,
      "run": {field: value * self.steps for field, value in step.items()},
      "roles": {
        role: {field: self.total(field, role) for field in fields}
        for role in dict.fromkeys(line.role for line in self.lines)
      },
      "lines": [
        {
          **{
            field.name: getattr(line, field.name)
            for field in dataclasses.fields(line)
            if field.name != "endpoint"
          },
          "cost": line.cost,
          "most_cost": line.most_cost,
          "model": line.endpoint.model,
        }
        for line in self.lines
      ],
      "unpriced": list(self.unpriced),
      "derived": dict(self.derived),
      "assumptions": dataclasses.asdict(self.assumptions),
    }


def make_plan(config: Config, assumptions: Assumptions | None = None) -> Plan:
  """Works out the calls of a run.

  Raises:
    ConfigError: the domain, the method or the held-out tasks cannot be used.
  """
  load_domain(config)
  if config.method.name not in PARTS:
    raise ConfigError(
      f"--plan knows the methods {', '.join(PARTS)}, not"
      f" {config.method.name!r}."
    )
  kind = PLANNERS.get(config.method.name, Planner)
  planner = kind(config, assumptions or Assumptions())
  lines = [
    *planner.writing(),
    *planner.admission(),
    *planner.grading(),
    *planner.patching(),
    *planner.evolution(),
    *planner.validation(),
  ]
  return Plan(
    name=config.name,
    steps=config.train.steps,
    lines=tuple(line for line in lines if line.most > 0),
    assumptions=planner.assume,
    derived=planner.derived(),
  )


def show(plan: Plan, *, as_json: bool = False) -> str:
  """The plan as a page of text, or as one JSON object."""
  if as_json:
    return json.dumps(plan.to_dict(), indent=2)
  console = rich.console.Console(width=118, highlight=False)
  with console.capture() as page:
    console.print(_table(plan))
    console.print(_sums(plan))
    console.print("\nAssumed (shares of 1; tokens and criteria a piece):")
    console.print(_listed(dataclasses.asdict(plan.assumptions)), soft_wrap=True)
    console.print("\nFrom these and the config:")
    console.print(_listed(plan.derived), soft_wrap=True)
    if plan.unpriced:
      console.print(
        f"\nNo price is set for {', '.join(plan.unpriced)}: give"
        " endpoints.roles.price_in, .price_out (and those of endpoints.judge)"
        " in dollars a million tokens.",
        soft_wrap=True,
      )
  return page.get()


def _table(plan: Plan) -> rich.table.Table:
  table = rich.table.Table(
    title=f"Plan of {plan.name}: a step of {plan.steps}",
    box=None,
    padding=(0, 1),
  )
  table.add_column("role")
  table.add_column("for")
  for name in ("calls", "at most", "read", "written", "dollars"):
    table.add_column(name, justify="right", no_wrap=True)
  table.add_column("calls are", overflow="fold")
  for line in plan.lines:
    table.add_row(
      line.role,
      line.purpose,
      _number(line.calls),
      _number(line.most),
      _number(line.calls * line.prompt),
      _number(line.calls * line.reply),
      _money(plan, line.cost),
      line.formula,
    )
  return table


def _sums(plan: Plan) -> str:
  rows = []
  for name, steps in (("step", 1), (f"run of {plan.steps} steps", plan.steps)):
    calls, most, prompt, reply, cost, most_cost = (
      plan.total(field) * steps
      for field in ("calls", "most", "prompt", "reply", "cost", "most_cost")
    )
    price = "no price is set"
    if not plan.unpriced:
      price = f"${cost:,.2f}, at most ${most_cost:,.2f}"
    rows.append(
      f"A {name}: {_number(calls)} calls, at most {_number(most)};"
      f" {_number(prompt)} tokens read, {_number(reply)} written; {price}."
    )
  return "\n" + "\n".join(rows)


def _number(value: float) -> str:
  return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def _money(plan: Plan, value: float) -> str:
  return "-" if plan.unpriced else f"{value:,.3f}"


def _listed(values: Mapping[str, float]) -> str:
  return "\n".join(
    f"  {name.replace('_', ' ')}: {value:g}" for name, value in values.items()
  )
