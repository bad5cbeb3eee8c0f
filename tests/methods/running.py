"""A method's service on the tiny world, and steps of it."""

import contextlib
from collections.abc import Iterator

from tests import fakes
from varl_jax.config import Config
from varl_jax.methods import METHODS
from varl_jax.service.generation_service import GenerationService
from varl_jax.service.store import Store
from varl_jax.types import GradedGroup


@contextlib.contextmanager
def service(path, config: Config, **roles) -> Iterator[GenerationService]:
  """The service of `config.method.name` on the store at `path`."""
  with contextlib.closing(Store(path)) as store:
    made = METHODS[config.method.name](
      config, roles=fakes.roles(**roles), store=store, checks=fakes.CHECKS
    )
    with contextlib.closing(made):
      yield made


def step(
  made: GenerationService, number: int
) -> tuple[list[GradedGroup], dict[str, float]]:
  """Polls, answers, grades and reports."""
  groups = [
    (task, fakes.rollouts(task, number)) for task in made.poll(number, 4)
  ]
  graded = made.grade(number, groups)
  return graded, made.report(number, graded)
