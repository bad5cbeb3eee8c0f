"""Builds a run's parts and sees it to its end.

The parts and who gets what:

    domain -> roles -> service ---+
    model -> sampler -> worker ---+-> Trainer
             learner, checkpoints -+
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax

from varl_jax.checkpoints import CheckpointError, Checkpoints
from varl_jax.config import Config, ConfigError
from varl_jax.domains import Domain, load_domain
from varl_jax.methods import METHODS
from varl_jax.metrics import MetricsError, MetricsWriter, Progress
from varl_jax.models.errors import ModelError
from varl_jax.models.llama import Llama
from varl_jax.models.loading import load_model
from varl_jax.prompts.loader import PromptError, load_prompts
from varl_jax.report import ReportError, write_report
from varl_jax.rl.train_step import Learner
from varl_jax.roles.bundle import make_roles
from varl_jax.rollouts import RolloutWorker
from varl_jax.sampling.sampler import Sampler
from varl_jax.service.calls import ServiceFailure
from varl_jax.service.generation_service import GenerationService
from varl_jax.service.store import Store, StoreError
from varl_jax.trainer import Trainer, TrainingFailure

DONE, JUDGE_FAILED, INTERRUPTED = 0, 3, 130


class RunError(Exception):
  """A run that cannot start or go on; one sentence with the mend."""


def run(config: Config, workdir: pathlib.Path) -> int:
  """Trains in `workdir`, from where it stopped if it did.

  Returns:
    The process's exit code.

  Raises:
    RunError, ConfigError: the input cannot be used; nothing was lost.
  """
  try:
    check_claim(config, workdir)
    return _train(config, workdir)
  except (CheckpointError, MetricsError, ModelError, PromptError) as error:
    raise RunError(str(error)) from error
  except (ReportError, StoreError, TrainingFailure) as error:
    raise RunError(str(error)) from error
  except OSError as error:
    raise RunError(
      f"{error.strerror or error}: {error.filename or workdir}. What was"
      " saved is kept; run the same command once it is mended."
    ) from error


def check_claim(config: Config, workdir: pathlib.Path) -> None:
  """Checks that the run in the folder, if there is one, is this one.

  Raises:
    RunError: the folder belongs to another config, or is no folder.
  """
  if workdir.exists() and not workdir.is_dir():
    raise RunError(f"{workdir} is a file; choose another --workdir.")
  path = workdir / "config.json"
  if not path.exists():
    return
  try:
    found = json.loads(path.read_text())["fingerprint"]
  except (ValueError, KeyError, TypeError) as error:
    raise RunError(
      f"{path} cannot be read ({error}); choose another --workdir."
    ) from error
  if found != config.fingerprint():
    raise RunError(
      f"{workdir} holds a run of another config; choose another --workdir"
      " or remove the folder. (Only train.steps may change.)"
    )


def claim(config: Config, workdir: pathlib.Path) -> None:
  """Makes the folder this config's."""
  text = json.dumps(
    {"fingerprint": config.fingerprint(), **config.to_dict()}, indent=2
  )
  draft = workdir / "config.draft"
  draft.write_text(text + "\n")
  os.replace(draft, workdir / "config.json")


def make_service(
  config: Config, domain: Domain, path: pathlib.Path
) -> GenerationService:
  """The generation service of the config's method."""
  described = dataclasses.replace(
    config, description=config.description or domain.description
  )
  return METHODS[config.method.name](
    described,
    roles=make_roles(domain.chat, config.domain, config.judge, domain.checks),
    store=Store(path),
    checks=domain.checks,
    verifiers=domain.verifiers,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
  """The policy's side: two samplers of one model, its learner, its weights."""

  worker: RolloutWorker
  examiner: RolloutWorker
  learner: Learner
  params: Any


def make_policy(config: Config) -> Policy:
  """Loads the model; nothing is compiled yet.

  Training and validation share a sampler where their temperatures are equal.
  """
  model_config, params, tokenizer = load_model(config.model.path)
  model = Llama(
    model_config,
    dtype=config.model.compute_dtype,
    remat=config.model.remat,
  )
  system = load_prompts(config.domain).system("solver")

  def worker(temperature: float) -> RolloutWorker:
    try:
      sampler = Sampler(
        model=model,
        stop_ids=tokenizer.stop_ids,
        forbidden_ids=tokenizer.forbidden_ids,
        max_prompt=config.model.max_prompt,
        max_new=config.model.max_response,
        temperature=temperature,
        seed=config.seed,
      )
    except ValueError as error:
      raise ConfigError(f"The model cannot be sampled so: {error}") from error
    return RolloutWorker(
      sampler=sampler,
      tokenizer=tokenizer,
      system=system,
      max_prompt=config.model.max_prompt,
      reasoning=config.model.reasoning,
    )

  training = worker(config.train.temperature)
  same = config.eval.temperature == config.train.temperature
  return Policy(
    worker=training,
    examiner=training if same else worker(config.eval.temperature),
    learner=Learner(
      hidden_fn=model.hidden,
      head_fn=model.lm_head_weight,
      vocab_size=model_config.vocab_size,
      forbidden_ids=sorted(tokenizer.forbidden_ids),
      config=config.train,
    ),
    params=params,
  )


def _train(config: Config, workdir: pathlib.Path) -> int:
  """Loads what the config names, then claims the folder, then trains."""
  _use_compile_cache()
  domain = load_domain(config)
  if config.method.name not in METHODS:
    raise ConfigError(
      f"Unknown method {config.method.name!r}; choose {', '.join(METHODS)}."
    )
  checkpoints = Checkpoints(
    folder=workdir / "checkpoints",
    keep=config.checkpoint.keep,
    interval=config.checkpoint.interval,
  )
  start = checkpoints.latest() or 0
  if start >= config.train.steps:
    print(f"{workdir} has done its {start} steps; raise train.steps to go on.")
    print(f"Report: {write_report(workdir)}")
    return DONE
  policy = make_policy(config)
  workdir.mkdir(parents=True, exist_ok=True)
  with contextlib.ExitStack() as stack:
    # The store's lock comes first: what follows writes into the folder.
    service = make_service(config, domain, workdir / "service.sqlite")
    stack.enter_context(contextlib.closing(service))
    check_claim(config, workdir)
    claim(config, workdir)
    metrics = stack.enter_context(MetricsWriter(workdir))
    interrupted = stack.enter_context(_interruptible())
    progress = Progress(
      total=config.train.steps, start=start, title=config.name
    )
    trainer = Trainer(
      config=config,
      service=service,
      worker=policy.worker,
      examiner=policy.examiner,
      learner=policy.learner,
      checkpoints=checkpoints,
      metrics=metrics,
      progress=progress,
      validator=domain.make_validator() if config.eval.interval else None,
      interrupted=interrupted,
    )
    code = _loop(trainer, policy.params, workdir)
    service.export_evidence(workdir / "evidence.jsonl")
  print(f"Report: {write_report(workdir)}")
  return code


def _loop(trainer: Trainer, params: Any, workdir: pathlib.Path) -> int:
  """Runs the trainer; says what a run that ended early leaves."""
  steps = trainer.config.train.steps
  try:
    with trainer.progress:
      _, done = trainer.run(params)
  except ServiceFailure as error:
    print(
      f"varl_jax: {error} The state in {workdir} is saved; the same command"
      " goes on from it.",
      file=sys.stderr,
    )
    return JUDGE_FAILED
  if done < steps:
    print(
      f"Interrupted after step {done} of {steps}, state saved. The same command"
      " goes on from here."
    )
    return INTERRUPTED
  return DONE


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
  """Ctrl-C and SIGTERM end the run after the step; a second one at once."""
  seen = False

  def ask(number: int, frame: types.FrameType | None) -> None:
    nonlocal seen
    if seen:
      raise KeyboardInterrupt
    seen = True
    print("Stopping after this step; once more to stop now.", file=sys.stderr)

  before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
  try:
    yield lambda: seen
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def _use_compile_cache() -> None:
  """Keeps compiled programs between runs, as later runs start faster."""
  if jax.config.values["jax_compilation_cache_dir"] is None:
    home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    folder = pathlib.Path(home) / "varl_jax" / "xla"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
