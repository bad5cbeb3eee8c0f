"""The arms differ in the parts they are made of, and in nothing else."""

import contextlib

import pytest

from tests import fakes
from varl_jax.config import ConfigError
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
    (
      "rar",
      WRITE - {"judge"} | {"decomposer", "solver", "checklist", "rater"},
    ),
    ("sibyl_sense", WRITE - {"judge"} | {"item_writer", "solver"}),
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


@pytest.mark.parametrize(
  ("settings", "named"),
  [
    ({"patch__referee_share": 0.5}, "patch.referee_share below 1"),
    ({"discriminator__on": True}, "discriminator.on"),
  ],
)
def test_settings_of_the_referee_need_one(tmp_path, settings, named):
  def build(name, **changed):
    path = tmp_path / f"{name}-{len(changed)}.sqlite"
    with contextlib.closing(Store(path)) as store:
      METHODS[name](
        fakes.config(**settings, **changed),
        roles=fakes.roles(),
        store=store,
        checks=fakes.CHECKS,
      ).close()

  for name in ("generation_only", "co_evolve_only"):
    with pytest.raises(ConfigError, match=f"{named} needs .* '{name}'"):
      build(name)
    build(name, method__measure_exploits=True)
  build("rri")
  with pytest.raises(ConfigError, match=r"set method\.measure_exploits"):
    build("rri", method__training_patches=False)
