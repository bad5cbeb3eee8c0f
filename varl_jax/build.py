"""Builds a run's parts and sees it to its end.

The parts and who gets what:

    domain -> roles -> service ---+
    model -> sampler -> worker ---+-> Trainer
             learner, checkpoints -+
             discriminator --------+
"""

import contextlib
import dataclasses
import os
import pathlib
import signal
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import jax
import rich.console
from jax.sharding import Mesh

from varl_jax import processes, serving, timeline
from varl_jax.async_loop import AsyncTrainer
from varl_jax.checkpoints import CheckpointError, Checkpoints
from varl_jax.companions import Companion, fresh_states
from varl_jax.config import Config, ConfigError
from varl_jax.domains import Domain, load_domain
from varl_jax.frozen_models import (
  open_validation_judge,
  total_usage,
  wants_self,
)
from varl_jax.judged_validation import JudgedValidator
from varl_jax.llm.chat import ChatModel
from varl_jax.llm.journal import JournalError
from varl_jax.local_models import LoadedModel, open_local
from varl_jax.methods import METHODS, learners
from varl_jax.metrics import MetricsError, MetricsWriter, NoMetrics, Progress
from varl_jax.models.errors import ModelError
from varl_jax.models.registry import CausalModel
from varl_jax.models.tokenizer import Tokenizer
from varl_jax.models.tool_turns import tool_turns
from varl_jax.models.turns import Turns
from varl_jax.prompts.loader import PromptError, load_prompts
from varl_jax.protocols import ToolBox, Validator
from varl_jax.report import EVIDENCE, ReportError, write_history, write_report
from varl_jax.rl.discriminator import Discriminator
from varl_jax.rl.train_step import Learner
from varl_jax.rollout_log import open_log
from varl_jax.rollouts import RolloutWorker
from varl_jax.run_folder import (
  RunError,
  check_claim,
  claim,
  disk_error,
  lock,
  run_id,
)
from varl_jax.sampling.local_chat import LocalChat
from varl_jax.service import evidence
from varl_jax.service.calls import ServiceFailure, Stopped
from varl_jax.service.hosting import HostedService, Notices
from varl_jax.service.http_client import HttpService
from varl_jax.service.store import Store, StoreError
from varl_jax.solver_tools import tool_specs
from varl_jax.suspicion import RunState, Suspecting
from varl_jax.team import Team
from varl_jax.tool_rollouts import ToolUse
from varl_jax.trainer import Trainer, TrainingFailure
from varl_jax.trunk import load_trunk
from varl_jax.types import ToolCall, ToolResult
from varl_jax.watchdog import Watchdog

DONE, JUDGE_FAILED, INTERRUPTED = 0, 3, 130
# How long a service may take to start beside its trainer.
START_PATIENCE_S: Final = 30.0


def run(
  config: Config, workdir: pathlib.Path, team: Team = processes.ALONE
) -> int:
  """Trains in `workdir`, from where it stopped if it did.

  Args:
    config: the run's settings.
    workdir: its folder, which all its processes see.
    team: its processes.

  Returns:
    The process's exit code.

  Raises:
    RunError, ConfigError: the input cannot be used; nothing was lost.
  """
  try:
    config = processes.pinned(config, team)
    check_claim(config, workdir)
    return _train(config, workdir, team)
  except (CheckpointError, MetricsError, ModelError, PromptError) as error:
    raise RunError(str(error)) from error
  except (JournalError, ReportError, StoreError, TrainingFailure) as error:
    raise RunError(str(error)) from error
  except OSError as error:
    raise disk_error(error, workdir) from error


def make_service(
  config: Config,
  domain: Domain,
  path: pathlib.Path,
  *,
  local: ChatModel | None = None,
) -> HostedService:
  """The generation service of a config, in a thread of this process."""
  return serving.make_service(
    config, domain, path, notices=_notices(), local=local
  )


def connect(config: Config, workdir: pathlib.Path) -> HttpService:
  """The generation service at `service.url`, once it answers.

  Raises:
    RunError: there is none, or it is another run's.
  """
  service = None
  try:
    service = HttpService(
      url=config.service.url,
      fingerprint=config.fingerprint(),
      run_id=run_id(workdir),
      token=serving.token(config),
      token_env=config.service.token_env,
      notify=_notices().say,
    )
    service.check(patience_s=START_PATIENCE_S)
  except ServiceFailure as error:
    if service is not None:
      service.close()
    raise RunError(str(error)) from error
  return service


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
  """The policy's side: two samplers of one model, its learner, its weights.

  `suspecting` is None in a run without a discriminator, `frozen` in one whose
  roles are other models; `companions` are the learners beside the policy. Who
  uses the devices takes `turns`.
  """

  worker: RolloutWorker
  examiner: RolloutWorker
  learner: Learner
  params: Any
  suspecting: Suspecting | None = None
  companions: tuple[Companion, ...] = ()
  frozen: LoadedModel | None = None
  turns: Turns = dataclasses.field(default_factory=Turns)

  def fresh(self) -> RunState:
    """All that a run trains, before its first step."""
    return RunState(
      policy=self.learner.init(self.params),
      head=None if self.suspecting is None else self.suspecting.init(),
      others=fresh_states(self.companions),
    )

  def with_tools(self, box: ToolBox) -> "Policy":
    """The same with tool calls run by `box`, where the policy has tools."""

    def worker(made: RolloutWorker) -> RolloutWorker:
      if made.tools is None:
        return made
      tools = dataclasses.replace(made.tools, box=box)
      return dataclasses.replace(made, tools=tools)

    return dataclasses.replace(
      self, worker=worker(self.worker), examiner=worker(self.examiner)
    )


class _NoToolBox:
  """Stands where no service is connected yet."""

  def run_tools(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
    raise RuntimeError(f"{len(calls)} tool calls before there is a service.")


def _tool_use(config: Config, tokenizer: Tokenizer) -> ToolUse | None:
  """How the policy uses the tools of the settings, None without any."""
  specs = tool_specs(config)
  if not specs:
    return None
  return ToolUse(
    specs=specs,
    turns=tool_turns(
      tokenizer,
      [spec.schema() for spec in specs],
      reasoning=config.model.reasoning,
    ),
    box=_NoToolBox(),
    max_calls=config.tools.max_calls,
    max_result_tokens=config.tools.max_result_tokens,
    max_response=config.model.max_response,
  )


def make_policy(config: Config) -> Policy:
  """Loads the model for all that the method trains; compiles nothing yet.

  Training and validation share a sampler where their temperatures are equal.
  With adapters, the trunk is held in the compute type: it is not trained. The
  first training state takes the weights over, so that they exist once.
  """
  first, *others = learners(config)
  trunk = load_trunk(
    config,
    adapters=bool(first.lora.rank),
    tools=lambda tokenizer: _tool_use(config, tokenizer),
  )
  params, axes = trunk.weights(first)
  learner = trunk.learner(first, axes)
  system = load_prompts(config.domain).system("solver")

  def worker(temperature: float) -> RolloutWorker:
    return trunk.worker(
      first,
      learner,
      axes,
      temperature=temperature,
      system=system,
      tools=trunk.tools,
    )

  training = worker(config.train.temperature)
  same = config.eval.temperature == config.train.temperature
  return Policy(
    worker=training,
    examiner=training if same else worker(config.eval.temperature),
    learner=learner,
    params=params,
    suspecting=_make_suspecting(config, trunk.model, learner, trunk.mesh),
    companions=tuple(trunk.companion(spec) for spec in others),
    frozen=trunk.frozen,
    turns=trunk.turns,
  )


def _make_suspecting(
  config: Config, model: CausalModel, learner: Learner, mesh: Mesh | None
) -> Suspecting | None:
  """The discriminator on the policy's trunk, if there is one."""
  if not config.discriminator.on:
    return None
  train = config.train
  return Suspecting(
    discriminator=Discriminator(
      hidden_fn=model.hidden,
      learning_rate=config.discriminator.learning_rate,
      decay=config.discriminator.decay,
      mesh=mesh,
    ),
    whole=learner.whole,
    width=model.config.hidden_size,
    rows=train.micro_batch or train.minibatch_tasks * train.samples,
    epsilon=config.patch.epsilon,
    config=config.discriminator,
  )


def _train(config: Config, workdir: pathlib.Path, team: Team) -> int:
  """Loads what the config names, then claims the folder, then trains."""
  use_compile_cache()
  domain = load_domain(config)
  if config.method.name not in METHODS:
    raise ConfigError(
      f"Unknown method {config.method.name!r}; choose {', '.join(METHODS)}."
    )
  several = len(learners(config)) > 1
  if team.count > 1 and (
    config.train.staleness or wants_self(config) or several
  ):
    raise ConfigError(
      "Overlapping steps (train.staleness), roles filled by the frozen weights"
      " (`self`) and methods with several learners run in one process; this run"
      f" has {team.count}."
    )
  if config.train.staleness and several:
    raise ConfigError(
      f"{config.method.name} trains several learners a step, whose steps do not"
      " overlap; set train.staleness to 0."
    )
  checkpoints = Checkpoints(
    folder=workdir / "checkpoints",
    keep=config.checkpoint.keep,
    interval=config.checkpoint.interval,
    agree=lambda find: team.share("steps", find),
    background=config.checkpoint.background,
  )
  start = checkpoints.latest() or 0
  if start >= config.train.steps and team.index:
    return DONE
  if start >= config.train.steps:
    print(f"{workdir} has done its {start} steps; raise train.steps to go on.")
    _complete_history(config, domain, workdir)
    print(f"Report: {write_report(workdir)}")
    return DONE
  # Told before the weights are loaded, which takes minutes.
  if team.index == 0:
    serving.check_models(config, service=not config.service.url)
  policy = make_policy(config)
  if config.init_from and not start:
    policy = _begun(config, policy, checkpoints)
  workdir.mkdir(parents=True, exist_ok=True)
  processes.check_shared(workdir, team)
  if team.index:
    return _train_along(config, workdir, team, policy, checkpoints)
  with contextlib.ExitStack() as stack:
    # Locks come first: what follows writes into the folder.
    stack.enter_context(lock(workdir))
    local = _local_chat(config, policy, stack)
    service = _open_service(config, domain, workdir, local)
    stack.enter_context(contextlib.closing(service))
    shared = processes.shared_service(team, service)
    policy = policy.with_tools(shared)
    check_claim(config, workdir)
    claim(config, workdir)
    metrics = stack.enter_context(MetricsWriter(workdir))
    kept = open_log(
      workdir,
      config.report,
      decode=policy.worker.tokenizer.decode,
      seed=config.seed,
    )
    if kept is not None:
      stack.enter_context(contextlib.closing(kept.lines))
    interrupted = stack.enter_context(_interruptible(team))
    service.give_up_when(interrupted)
    progress = Progress(
      total=config.train.steps, start=start, title=config.name
    )
    validator, usage = _validation(
      config, domain, workdir, stack, local=local, interrupted=interrupted
    )
    stages = timeline.Timeline(workdir / timeline.FILE_NAME)
    say = _notices().say
    stack.enter_context(Watchdog(stages, seconds=config.train.stall_s, say=say))
    kind = AsyncTrainer if config.train.staleness else Trainer
    trainer = kind(
      config=config,
      service=shared,
      worker=policy.worker,
      examiner=policy.examiner,
      learner=policy.learner,
      checkpoints=checkpoints,
      metrics=metrics,
      progress=progress,
      validator=processes.shared_validator(team, validator),
      suspecting=policy.suspecting,
      companions=policy.companions,
      kept=kept,
      interrupted=processes.shared_stop(team, interrupted),
      usage=usage,
      timeline=stages,
    )
    code = _loop(trainer, policy.params, workdir)
    with _second_to(code, workdir):
      keep_history(service, workdir)
  with _second_to(code, workdir):
    print(f"Report: {write_report(workdir)}")
  return code


def _begun(config: Config, policy: Policy, checkpoints: Checkpoints) -> Policy:
  """The policy with the newest weights of the run `init_from` names."""
  folder = pathlib.Path(config.init_from) / "checkpoints"
  others = dataclasses.replace(checkpoints, folder=folder)
  step = others.latest()
  if step is None:
    raise ConfigError(
      f"init_from names {config.init_from}, which has no complete checkpoint;"
      " give the folder of a run that has one."
    )
  learner = policy.learner
  whole = RunState(
    policy=learner.init(policy.params),
    head=None if policy.suspecting is None else policy.suspecting.init(),
  )
  found, _ = others.restore(step, whole.saved())
  params = RunState.restored(found).policy.params
  return dataclasses.replace(policy, params=learner.whole(params))


def _train_along(
  config: Config,
  workdir: pathlib.Path,
  team: Team,
  policy: Policy,
  checkpoints: Checkpoints,
) -> int:
  """The part of a process other than 0: the same loop, told what to train on.

  It opens no service and writes nothing but its part of the checkpoints.
  """
  service = processes.shared_service(team, None)
  policy = policy.with_tools(service)
  with _interruptible(team) as interrupted:
    trainer = Trainer(
      config=config,
      service=service,
      worker=policy.worker,
      examiner=policy.examiner,
      learner=policy.learner,
      checkpoints=checkpoints,
      metrics=NoMetrics(),
      progress=Progress(
        total=config.train.steps, console=rich.console.Console(quiet=True)
      ),
      validator=processes.shared_validator(team, None),
      suspecting=policy.suspecting,
      interrupted=processes.shared_stop(team, interrupted),
    )
    return _loop(trainer, policy.params, workdir)


@contextlib.contextmanager
def _second_to(code: int, workdir: pathlib.Path) -> Iterator[None]:
  """After a run that ended early, what fails here is said and does not decide.

  The exit code and the last sentence are those of what ended the run.
  """
  try:
    yield
  except (OSError, ReportError, StoreError) as error:
    if code == DONE:
      raise
    if isinstance(error, OSError):
      error = disk_error(error, workdir)
    _say_stale(error)


def _validation(
  config: Config,
  domain: Domain,
  workdir: pathlib.Path,
  stack: contextlib.ExitStack,
  *,
  local: ChatModel | None,
  interrupted: Callable[[], bool],
) -> tuple[Validator | None, Callable[[], dict[str, float]]]:
  """The held-out tasks, and what their judge was asked for so far."""
  if not config.eval.interval:
    return None, dict
  judge = None
  if config.eval.tasks_path:
    judge = open_validation_judge(
      config, workdir, local=local, notify=_notices().say, stack=stack
    )
  validator = domain.make_validator(None if judge is None else lambda: judge)
  if isinstance(validator, JudgedValidator):
    stack.enter_context(contextlib.closing(validator))
    if judge is not None:
      validator.give_up_when(lambda: interrupted() and judge.away)
  return validator, lambda: total_usage([] if judge is None else [judge])


def _open_service(
  config: Config,
  domain: Domain,
  workdir: pathlib.Path,
  local: ChatModel | None = None,
) -> HostedService | HttpService:
  if config.service.url:
    return connect(config, workdir)
  return make_service(config, domain, workdir / serving.STORE, local=local)


def _local_chat(
  config: Config, policy: Policy, stack: contextlib.ExitStack
) -> ChatModel | None:
  """The frozen weights as a model of the roles, None where none wants them."""
  if policy.frozen is None:
    return None
  try:
    model = open_local(
      policy.frozen,
      name=f"{pathlib.Path(config.model.path).name} (frozen)",
      settings=config.local,
      turns=policy.turns,
    )
  except ValueError as error:
    raise ConfigError(f"local: {error}") from error
  stack.callback(model.close)
  return LocalChat(model, hold_schema=config.local.hold_schema)


def _complete_history(
  config: Config, domain: Domain, workdir: pathlib.Path
) -> None:
  """Leaves what a run that was killed after its last step has not left."""
  path = workdir / serving.STORE
  if path.is_file():
    with contextlib.closing(Store(path, read_only=True)) as store:
      evidence.export_evidence(store, workdir / EVIDENCE)
    return
  try:
    with contextlib.closing(_open_service(config, domain, workdir)) as service:
      keep_history(service, workdir)
  except RunError as error:
    _say_stale(error)


def _say_stale(error: Exception) -> None:
  print(
    f"varl_jax: The report lacks the newest cases: {error}", file=sys.stderr
  )


def keep_history(
  service: HostedService | HttpService, workdir: pathlib.Path
) -> None:
  """Leaves in the folder what reports tell of the service."""
  try:
    service.export_evidence(workdir / EVIDENCE)
    if not (workdir / serving.STORE).exists():
      write_history(workdir, service.history(limit=0))
  except ServiceFailure as error:
    _say_stale(error)


def _notices() -> Notices:
  return Notices(lambda sentence: print(sentence, file=sys.stderr))


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
    return INTERRUPTED if isinstance(error, Stopped) else JUDGE_FAILED
  if done < steps:
    print(
      f"Interrupted after step {done} of {steps}, state saved. The same command"
      " goes on from here."
    )
    return INTERRUPTED
  return DONE


@contextlib.contextmanager
def _interruptible(team: Team) -> Iterator[Callable[[], bool]]:
  """Ctrl-C and SIGTERM end the run after the step; a second one at once.

  Whichever process they reach, all end together.

  A run that waits for a server has no end of the step to wait for: the service
  is told by `give_up_when`.
  """
  seen = False

  def ask(number: int, frame: types.FrameType | None) -> None:
    nonlocal seen
    if seen:
      raise KeyboardInterrupt
    seen = True
    team.ask_stop()
    print("Stopping after this step; once more to stop now.", file=sys.stderr)

  before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
  try:
    yield lambda: seen or team.stop_asked()
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def use_compile_cache() -> None:
  """Keeps compiled programs between runs, as later runs start faster."""
  if jax.config.values["jax_compilation_cache_dir"] is None:
    home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    folder = pathlib.Path(home) / "varl_jax" / "xla"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
