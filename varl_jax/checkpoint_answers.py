"""Answers of a local checkpoint: a run's, a model folder's, a shipped model's.

Tokens are drawn as validation draws them, keyed by seed, task and sample, so an
evaluation that goes on after a stop answers as one that never stopped. Greedy
decoding is temperature `GREEDY`: at a millionth, noise decides between tokens
whose logits differ by less than about 2e-5, which rounding would too.
"""

import asyncio
import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

from varl_jax import build
from varl_jax.answer_sources import Failed, Wanted
from varl_jax.benchmarks.answering import Answer
from varl_jax.benchmarks.protocol import BenchmarkError, BenchmarkTask
from varl_jax.checkpoints import Checkpoints
from varl_jax.config import Config, ConfigError, from_config_dict
from varl_jax.models.loading import STORY_FOLDER, smollm2_file
from varl_jax.rollouts import RolloutWorker
from varl_jax.suspicion import RunState
from varl_jax.types import Message

GREEDY: Final = 1e-6
# Answers drawn between two looks at whether to stop.
ROWS: Final = 64
_WEIGHTS: Final = (".safetensors", ".gguf")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointSource:
  """An `evaluation.AnswerSource` over a policy's weights.

  Attributes:
    worker: draws answers.
    params: the weights.
    samples: answers a task.
    name: of the model, on every answer.
  """

  worker: RolloutWorker
  params: Any
  samples: int
  name: str

  async def stream(
    self, wanted: Wanted, *, stopped: Callable[[], bool]
  ) -> AsyncIterator[Answer | Failed]:
    """Answers batch by batch; a batch that has begun is finished."""
    missing = {(task.task_id, sample) for task, sample in wanted}
    tasks = {task.task_id: task for task, _ in wanted}
    # Prompts of like length share a batch, which is as long as its longest.
    order = sorted(tasks.values(), key=_length)
    size = max(1, ROWS // self.samples)
    for start in range(0, len(order), size):
      if stopped():
        return
      batch = order[start : start + size]
      for answer in await asyncio.to_thread(self._answers, batch):
        if (answer.task_id, answer.sample) in missing:
          yield answer

  def _answers(self, tasks: list[BenchmarkTask]) -> list[Answer]:
    groups = self.worker.collect(
      [task.as_task() for task in tasks],
      n=self.samples,
      params=self.params,
      step=0,
    )
    found = {
      (group.task.task_id, rollout.sample): Answer(
        task_id=group.task.task_id,
        sample=rollout.sample,
        answer=rollout.answer or None,
        finish=rollout.finish,
        model=self.name,
        prompt_tokens=len(group.prompt),
        reply_tokens=len(rollout.tokens),
      )
      for group in groups
      for rollout in group.rollouts
    }
    # A prompt above `model.max_prompt` gets no answer, as in validation.
    return [
      found.get((task.task_id, sample))
      or Answer(
        task_id=task.task_id,
        sample=sample,
        answer=None,
        finish="length",
        model=self.name,
      )
      for task in tasks
      for sample in range(self.samples)
    ]


def _length(task: BenchmarkTask) -> int:
  return sum(len(turn.content) for turn in task.prompt)


def open_checkpoint(
  model: str,
  *,
  config: Config,
  samples: int,
  temperature: float,
  system: str | None,
  domain: str,
) -> tuple[CheckpointSource, dict[str, Any]]:
  """Loads a model.

  Args:
    model: a run's folder (its newest checkpoint), or what `load_model` takes.
    config: how a model folder is loaded; a run brings its own config.
    samples: answers a task.
    temperature: 0 for greedy decoding.
    system: the system message, None for the solver's.
    domain: whose solver message, where the model is no run.

  Returns:
    The source, and what stands of it in the results.

  Raises:
    BenchmarkError: the run has no checkpoint, or is no run.
    ConfigError, ModelError, CheckpointError: it cannot be loaded.
  """
  folder = pathlib.Path(model).expanduser()
  is_run = (folder / "config.json").is_file() and (
    folder / "checkpoints"
  ).is_dir()
  if is_run:
    config = _run_config(folder, config)
  else:
    config = dataclasses.replace(
      config,
      domain=domain,
      model=dataclasses.replace(config.model, path=model),
    )
  config = dataclasses.replace(
    config,
    eval=dataclasses.replace(config.eval, temperature=temperature or GREEDY),
  )
  build.use_compile_cache()
  policy = build.make_policy(config)
  if is_run:
    params, step, weights = _restored(policy, folder)
  else:
    params, step = policy.learner.hold(policy.params), 0
    weights = _weight_files(config.model.path)
  worker = policy.examiner
  if system is not None:
    worker = dataclasses.replace(
      worker, system=Message(role="system", content=system)
    )
  name = f"{folder.name} step {step}" if is_run else model
  text = worker.system.content
  return (
    CheckpointSource(worker=worker, params=params, samples=samples, name=name),
    {
      "kind": "run" if is_run else "checkpoint",
      "name": name,
      "weights_sha256": digest_files(weights),
      "method": "none",
      "temperature": temperature,
      "dtype": config.model.compute_dtype,
      "max_prompt": config.model.max_prompt,
      "max_tokens": config.model.max_response,
      "reasoning": config.model.reasoning,
      "system_sha256": hashlib.sha256(text.encode()).hexdigest()
      if text
      else "",
    },
  )


def _run_config(folder: pathlib.Path, config: Config) -> Config:
  """The run's own config on this evaluation's mesh and seed."""
  try:
    tree = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tree.pop("fingerprint", None)
    found = from_config_dict(tree)
  except (OSError, ValueError, AttributeError) as error:
    raise BenchmarkError(
      f"{folder / 'config.json'} is no run's config ({error})."
    ) from error
  return dataclasses.replace(found, mesh=config.mesh, seed=config.seed)


def _restored(
  policy: build.Policy, folder: pathlib.Path
) -> tuple[Any, int, list[pathlib.Path]]:
  """Weights of the newest checkpoint, its step, and its files."""
  checkpoints = Checkpoints(folder=folder / "checkpoints")
  step = checkpoints.latest()
  if step is None:
    raise BenchmarkError(
      f"{folder} has no complete checkpoint; name the model folder itself, or"
      " a run that has one."
    )
  found, _ = checkpoints.restore(step, policy.fresh().saved())
  state = RunState.restored(found).policy
  place = folder / "checkpoints" / str(step)
  return state.params, step, [p for p in place.rglob("*") if p.is_file()]


def _weight_files(model: str) -> list[pathlib.Path]:
  if model == "story":
    path = STORY_FOLDER
  elif model == "smollm2":
    path = smollm2_file()
  else:
    path = pathlib.Path(model).expanduser()
  if path.is_file():
    return [path]
  found = [p for p in path.iterdir() if p.suffix in _WEIGHTS]
  if not found:
    raise ConfigError(f"{path} holds no weights ({' or '.join(_WEIGHTS)}).")
  return found


def digest_files(paths: Iterable[os.PathLike[str]]) -> str:
  """One hash of several files' names and contents."""
  made = hashlib.sha256()
  for path in sorted(map(pathlib.Path, paths)):
    made.update(path.name.encode() + b"\0")
    with open(path, "rb") as file:
      made.update(hashlib.file_digest(file, "sha256").digest())
  return made.hexdigest()
