"""The arms differ in the parts they are made of, and in nothing else."""

import pytest

from tests import fakes
from varl_jax.methods import METHODS
from varl_jax.service.store import Store

REPAIR = {"adversary", "repairer", "referee", "patcher", "memo_optimizer"}
EVOLVE = {"analyst", "meta_optimizer"}
WRITE = {"proposer", "generator", "judge"}


def roles_called(tmp_path, config, name: str) -> set[str]:
  called = set()

  def watched(role):
    def reply(reading):
      called.add(role)
      return fakes.RESPONDERS[role](reading)

    return reply

  service = METHODS[name](
    config,
    roles=fakes.roles(**{role: watched(role) for role in fakes.RESPONDERS}),
    store=Store(tmp_path / "service.sqlite"),
    checks=fakes.CHECKS,
  )
  for step in range(6):
    groups = [
      (task, fakes.rollouts(task, step)) for task in service.poll(step, 4)
    ]
    metrics = service.report(step, service.grade(step, groups))
    assert metrics["pool/size"] >= 1
  service.close()
  return called


@pytest.mark.parametrize(
  ("name", "expected"),
  [
    ("generation_only", WRITE),
    ("co_evolve_only", WRITE | EVOLVE),
    ("rri", WRITE | EVOLVE | REPAIR | {"solver"}),
  ],
)
def test_the_roles_an_arm_calls(tmp_path, name, expected):
  config = fakes.config(pool__capacity=60)
  assert roles_called(tmp_path, config, name) == expected


@pytest.mark.parametrize(
  ("switch", "missing"),
  [
    ("evolve_guidance", EVOLVE),
    ("admission_repair", {"solver", "repairer", "memo_optimizer"}),
    ("training_patches", {"referee", "patcher"}),
    ("memo", {"memo_optimizer"}),
  ],
)
def test_each_part_of_rri_is_a_switch(tmp_path, switch, missing):
  config = fakes.config(pool__capacity=60, method={switch: False})
  called = roles_called(tmp_path, config, "rri")
  assert called == (WRITE | EVOLVE | REPAIR | {"solver"}) - missing
