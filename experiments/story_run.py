r"""Trains the story policy under a judge that takes its time.

    python -m experiments.story_run --config=configs/story.py \
        --config.train.staleness=1 --judge_s=3 --workdir=/tmp/slow

The run is `varl_jax.main`'s, but every call of the judge waits before it
replies, as a model behind a server would; waiting calls do not wait for one
another. A run that was cut goes on; one that is complete is not repeated.
"""

import asyncio
import contextlib
import dataclasses
import pathlib
from collections.abc import Callable

from absl import app, flags
from ml_collections import config_flags

from experiments import arm_results
from varl_jax import build
from varl_jax.async_loop import AsyncTrainer
from varl_jax.checkpoints import Checkpoints
from varl_jax.config import Config, from_config_dict
from varl_jax.domains import load_domain
from varl_jax.llm.chat import ChatModel, ChatReply, ChatRequest
from varl_jax.metrics import MetricsWriter, Progress
from varl_jax.timeline import FILE_NAME, Timeline
from varl_jax.trainer import Trainer

_CONFIG = config_flags.DEFINE_config_file("config", None, "Of the run.")
JUDGE_S = flags.DEFINE_float(
  "judge_s", 3.0, "Seconds that a call of the judge takes."
)
flags.adopt_module_key_flags(arm_results)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlowJudge:
  """A model whose judge replies late."""

  inner: ChatModel
  seconds: float

  @property
  def name(self) -> str:
    """The model's own."""
    return self.inner.name

  async def complete(self, request: ChatRequest) -> ChatReply:
    """Waits, if it is the judge who is asked."""
    if request.role == "judge":
      await asyncio.sleep(self.seconds)
    return await self.inner.complete(request)


def train(
  config: Config,
  workdir: pathlib.Path,
  *,
  judge_s: float = 0.0,
  after_step: Callable[[], bool] = lambda: False,
) -> int:
  """Trains in `workdir`, from where it stopped if it did.

  Args:
    config: of the story world.
    workdir: of the run.
    judge_s: seconds that a call of the judge takes.
    after_step: called once a step; True stops the run with its state saved.

  Returns:
    Steps done.
  """
  build.use_compile_cache()
  workdir.mkdir(parents=True, exist_ok=True)
  checkpoints = Checkpoints(
    folder=workdir / "checkpoints",
    keep=config.checkpoint.keep,
    interval=config.checkpoint.interval,
  )
  start = checkpoints.latest() or 0
  if start >= config.train.steps:
    return start
  domain = load_domain(config)
  assert domain.chat is not None
  slow = SlowJudge(inner=domain.chat, seconds=judge_s)
  domain = dataclasses.replace(domain, chat=slow if judge_s else domain.chat)
  policy = build.make_policy(config)
  kind = AsyncTrainer if config.train.staleness else Trainer
  with (
    contextlib.closing(MetricsWriter(workdir)) as metrics,
    contextlib.closing(
      build.make_service(config, domain, workdir / "service.sqlite")
    ) as service,
  ):
    _, done = kind(
      config=config,
      service=service,
      worker=policy.worker,
      examiner=policy.examiner,
      learner=policy.learner,
      checkpoints=checkpoints,
      metrics=metrics,
      progress=Progress(total=config.train.steps, start=start),
      validator=domain.make_validator() if config.eval.interval else None,
      interrupted=after_step,
      timeline=Timeline(workdir / FILE_NAME),
    ).run(policy.params)
    service.export_evidence(workdir / "evidence.jsonl")
  return done


def main(_):
  """Trains one run."""
  if _CONFIG.value is None:
    raise app.UsageError("Give --config.")
  config = from_config_dict(_CONFIG.value)
  train(config, arm_results.workdir(), judge_s=JUDGE_S.value)


if __name__ == "__main__":
  app.run(main)
