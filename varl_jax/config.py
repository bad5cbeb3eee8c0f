"""The tree of settings of a run, built strictly from a config file.

A config file's `get_config()` returns an `ml_collections.ConfigDict` whose keys
are the fields below; `from_config_dict` refuses any other key. Defaults are the
paper's values; a comment names the section of the paper's appendix.
"""

import dataclasses
import hashlib
import json
import math
import typing
from collections.abc import Mapping
from typing import Any, Final, Literal

MAX_SAMPLES: Final = 26


class ConfigError(ValueError):
  """A setting that cannot be used; the message names it and the mend."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
  """The solver.

  `path` is a Hugging Face folder, a .gguf file, or a built-in name: `story`
  (the shipped tiny policy) or `smollm2` (needs the extra of that name).
  """

  path: str = "story"
  compute_dtype: Literal["float32", "bfloat16"] = "float32"
  remat: bool = False
  max_prompt: int = 6144  # Appendix E, tokens
  max_response: int = 8192  # Appendix E, tokens
  reasoning: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
  """GRPO (Appendix E)."""

  steps: int = 100
  tasks_per_step: int = 64
  samples: int = 8  # n, answers a group
  minibatch_tasks: int = 16
  micro_batch: int = 0  # rows a gradient piece; 0 = the whole mini-batch
  temperature: float = 1.0
  learning_rate: float = 1e-6
  warmup_updates: int = 0
  weight_decay: float = 0.0
  max_grad_norm: float = 1.0
  clip_ratio: float = 0.2
  min_graded: int = 4  # below it a group is requeued, spec section 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardConfig:
  """Length term (Appendix G): lambda a `unit` of characters from `center`."""

  length_weight: float = 0.0147
  length_center: int = 2000
  length_unit: int = 500
  length_adjusted: bool = True
  truncated_score: Literal["zero", "group_min", "unscorable"] = "zero"


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgeConfig:
  """Votes a criterion; a run stops above `max_failure_rate` in a step."""

  votes: int = 3
  max_failure_rate: float = 0.2
  concurrency: int = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoolConfig:
  """Serving and eviction (Appendix B); the last three are ours."""

  window: int = 4
  variance_floor: float = 1e-4
  mean_low: float = 0.05
  mean_high: float = 0.88
  capacity: int = 256
  floor: int = 0  # 0 = one training batch
  replay_share: float = 0.5  # of a batch that may come from the replay buffer


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdmissionConfig:
  """Probe and repair before a task is served (Appendix C)."""

  margin: float = 0.20  # delta
  honest_low: float = 0.15
  honest_high: float = 0.92
  rounds: int = 2
  min_drop: float = 0.15
  concurrency: int = 48
  min_answer_chars: int = 20
  barrier: bool = False  # finish all of it, in request order, within a step


@dataclasses.dataclass(frozen=True, kw_only=True)
class PatchConfig:
  """Exploit cases and patches in training (Appendix C)."""

  epsilon: float = 0.15
  cases_per_step: int = 8
  max_criteria: int = 5
  rounds: int = 2
  max_patches_per_task: int = 6
  min_gap_removed: float = 0.05
  min_chars: int = 40
  max_chars: int = 220
  min_points: int = 5
  max_points: int = 10
  max_overlap: float = 0.6
  re_attack: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvolutionConfig:
  """Guidance evolution (Appendix D), every `interval` steps."""

  interval: int = 5
  cases: int = 20
  worst_share: float = 0.5
  best_share: float = 0.25
  max_words: int = 300


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoConfig:
  """The adversary memo and its objective (Appendix D)."""

  max_chars: int = 2400
  target_margin: float = 0.0
  kappa: float = 2.0
  tolerance: float = 0.02  # tau
  observations: int = 2
  min_honest: float = 0.25


@dataclasses.dataclass(frozen=True, kw_only=True)
class MethodConfig:
  """Which method of `methods.METHODS` runs; its parts may be switched off.

  `measure_exploits` has the referee look for exploit cases where nothing
  repairs them, for comparison alone: no role is told of what it finds.
  """

  name: str = "rri"
  evolve_guidance: bool = True
  admission_repair: bool = True
  training_patches: bool = True
  memo: bool = True
  measure_exploits: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
  """Validation on held-out tasks, every `interval` steps and at the end."""

  interval: int = 5
  tasks: int = 64
  samples: int = 1
  temperature: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
  """A checkpoint every `interval` steps; `keep` of them stay."""

  interval: int = 5
  keep: int = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """All settings of one run."""

  name: str = "run"
  seed: int = 0
  domain: str = "story"
  description: str = ""
  model: ModelConfig = ModelConfig()
  train: TrainConfig = TrainConfig()
  reward: RewardConfig = RewardConfig()
  judge: JudgeConfig = JudgeConfig()
  pool: PoolConfig = PoolConfig()
  admission: AdmissionConfig = AdmissionConfig()
  patch: PatchConfig = PatchConfig()
  evolution: EvolutionConfig = EvolutionConfig()
  memo: MemoConfig = MemoConfig()
  method: MethodConfig = MethodConfig()
  eval: EvalConfig = EvalConfig()
  checkpoint: CheckpointConfig = CheckpointConfig()

  def to_dict(self) -> dict[str, Any]:
    """The tree as plain values."""
    return dataclasses.asdict(self)

  def fingerprint(self) -> str:
    """Hash of every setting that shapes results (not `train.steps`)."""
    tree = self.to_dict()
    del tree["train"]["steps"]
    text = json.dumps(tree, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def from_config_dict(tree: Mapping[str, Any]) -> Config:
  """Builds a `Config`.

  Args:
    tree: nested mapping, such as an `ml_collections.ConfigDict`.

  Raises:
    ConfigError: unknown key, wrong type, or a value out of range.
  """
  as_dict = getattr(tree, "to_dict", None)  # a ConfigDict is no Mapping
  config = _build(Config, as_dict() if as_dict else tree, "")
  _validate(config)
  return config


def _build(kind: Any, tree: Mapping[str, Any], path: str) -> Any:
  hints = typing.get_type_hints(kind)
  made = {}
  for key, value in tree.items():
    name = f"{path}{key}"
    if key not in hints:
      raise ConfigError(
        f"Unknown setting {name!r}; {path.rstrip('.') or 'the config'} has:"
        f" {', '.join(hints)}."
      )
    hint = hints[key]
    if dataclasses.is_dataclass(hint):
      if not isinstance(value, Mapping):
        raise ConfigError(f"Setting {name!r} is a group, got {value!r}.")
      made[key] = _build(hint, value, f"{name}.")
    else:
      made[key] = _scalar(hint, value, name)
  return kind(**made)


def _scalar(hint: Any, value: Any, name: str) -> Any:
  if typing.get_origin(hint) is Literal:
    choices = typing.get_args(hint)
    if value not in choices:
      raise ConfigError(
        f"Setting {name!r} is one of {', '.join(choices)}, got {value!r}."
      )
    return value
  if hint is float and type(value) is int:
    return float(value)
  if type(value) is float and not math.isfinite(value):
    raise ConfigError(f"Setting {name!r} is a finite number, got {value!r}.")
  if type(value) is not hint:
    raise ConfigError(
      f"Setting {name!r} wants a {hint.__name__}, got {value!r}."
    )
  return value


_AT_LEAST_ONE = (
  "model.max_prompt",
  "model.max_response",
  "train.steps",
  "train.tasks_per_step",
  "train.minibatch_tasks",
  "train.min_graded",
  "judge.votes",
  "judge.concurrency",
  "pool.window",
  "pool.capacity",
  "admission.rounds",
  "admission.concurrency",
  "patch.rounds",
  "patch.cases_per_step",
  "evolution.interval",
  "evolution.cases",
  "memo.observations",
  "eval.samples",
  "eval.tasks",
  "checkpoint.interval",
  "checkpoint.keep",
)
_AT_LEAST_ZERO = (
  "train.micro_batch",
  "train.warmup_updates",
  "train.weight_decay",
  "pool.floor",
  "eval.interval",
  "patch.epsilon",
  "patch.min_gap_removed",
  "admission.margin",
  "admission.min_drop",
  "admission.min_answer_chars",
  "memo.kappa",
  "memo.tolerance",
)
_POSITIVE = (
  "train.temperature",
  "train.learning_rate",
  "train.max_grad_norm",
  "train.clip_ratio",
  "reward.length_unit",
  "eval.temperature",
)
_SHARES = (
  "judge.max_failure_rate",
  "pool.replay_share",
  "evolution.worst_share",
  "evolution.best_share",
)


_ORDERED = (
  ("admission.honest_low", "admission.honest_high"),
  ("pool.mean_low", "pool.mean_high"),
  ("patch.min_chars", "patch.max_chars"),
  ("patch.min_points", "patch.max_points"),
)
# The prompts state these limits, so a setting can only be tighter.
_AT_MOST = {
  "evolution.max_words": 300,
  "memo.max_chars": 2400,
  "patch.max_criteria": 5,
}


def _validate(config: Config) -> None:
  def get(path: str) -> Any:
    group, key = path.split(".")
    return getattr(getattr(config, group), key)

  for path in _AT_LEAST_ONE:
    if get(path) < 1:
      raise ConfigError(f"{path} is at least 1, got {get(path)}.")
  for path in _AT_LEAST_ZERO:
    if get(path) < 0:
      raise ConfigError(f"{path} is at least 0, got {get(path)}.")
  for low, high in _ORDERED:
    if get(low) > get(high):
      raise ConfigError(
        f"{low} is at most {high}, got {get(low)} and {get(high)}."
      )
  for path, most in _AT_MOST.items():
    if not 1 <= get(path) <= most:
      raise ConfigError(f"{path} is between 1 and {most}, got {get(path)}.")
  for path in _POSITIVE:
    if not get(path) > 0:
      raise ConfigError(f"{path} is above 0, got {get(path)}.")
  for path in _SHARES:
    if not 0 <= get(path) <= 1:
      raise ConfigError(f"{path} is between 0 and 1, got {get(path)}.")
  if config.train.samples < 2:
    raise ConfigError(
      "train.samples is at least 2 (advantages compare answers of a group),"
      f" got {config.train.samples}."
    )
  if config.train.samples > MAX_SAMPLES:
    raise ConfigError(
      f"train.samples is at most {MAX_SAMPLES} (the referee letters the answers"
      f" of a group), got {config.train.samples}."
    )
  if config.train.min_graded > config.train.samples:
    raise ConfigError(
      "train.min_graded is at most train.samples, or no group would ever train;"
      f" got {config.train.min_graded} and {config.train.samples}."
    )
  if config.train.tasks_per_step % config.train.minibatch_tasks:
    raise ConfigError(
      "train.tasks_per_step is a multiple of train.minibatch_tasks, got"
      f" {config.train.tasks_per_step} and {config.train.minibatch_tasks}."
    )
  if config.pool.floor > config.pool.capacity:
    raise ConfigError(
      "pool.floor is at most pool.capacity, got"
      f" {config.pool.floor} and {config.pool.capacity}."
    )
