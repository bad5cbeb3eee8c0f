"""The tree of settings of a run, built strictly from a config file.

A config file's `get_config()` returns an `ml_collections.ConfigDict` whose keys
are the fields below; `from_config_dict` refuses any other key. Defaults are the
paper's values; a comment names the section of the paper's appendix.
"""

import dataclasses
import functools
import hashlib
import json
import math
import typing
from collections.abc import Mapping
from typing import Any, Final, Literal

MAX_SAMPLES: Final = 26
# What of an endpoint decides its replies; the rest is how it is reached.
SHAPES_REPLIES: Final = ("model", "effort", "max_tokens")
# Settings that a run may be resumed with changed, beside those of endpoints.
MAY_CHANGE: Final = (
  "train.steps",
  "train.stall_s",
  "mesh",
  "service",
  "checkpoint.background",
  "judge.concurrency",
  "judge.check_workers",
  "judge.canary",
  "report",
  "gate",
  "local.slots",
  "local.width",
  "retrieval.encoder",
  "tools.timeout_s",
  "tools.web_url",
  "tools.web_key_env",
  "tools.web_mode",
  "tools.web_recordings",
)


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
class MeshConfig:
  """Devices an axis of the mesh; their product is the number of devices."""

  data: int = 1
  fsdp: int = 1
  tensor: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraConfig:
  """Low-rank adapters instead of full training; rank 0 trains all weights.

  `targets` names projections, separated by commas.
  """

  rank: int = 0
  alpha: float = 64.0
  targets: str = "q,k,v,o"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
  """GRPO (Appendix E); the last three are ours.

  Attributes:
    staleness: updates that sampling may run ahead; 0 is on policy.
    importance_cap: with staleness, bound of a token's importance weight.
    stall_s: seconds without movement after which a run says what it waits for;
      0 never.
  """

  steps: int = 100
  tasks_per_step: int = 64
  samples: int = 8  # n, answers a group
  minibatch_tasks: int = 16
  micro_batch: int = 0  # rows a gradient piece; 0 = the whole mini-batch
  length_bucket: int = 0  # least length of a micro-batch; 0 = that of the step
  temperature: float = 1.0
  learning_rate: float = 1e-6
  warmup_updates: int = 0
  weight_decay: float = 0.0
  max_grad_norm: float = 1.0
  clip_ratio: float = 0.2
  min_graded: int = 4  # below it a group is requeued, spec section 3
  staleness: int = 0
  importance_cap: float = 2.0
  stall_s: float = 900.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardConfig:
  """Length term (Appendix G): lambda a `unit` of characters from `center`."""

  length_weight: float = 0.0147
  length_center: int = 2000
  length_unit: int = 500
  length_adjusted: bool = True
  truncated_score: Literal["zero", "group_min", "unscorable"] = "zero"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RubricConfig:
  """Shape of the rubrics asked for (Appendix B), see `rubrics.shape`."""

  positive_mean: float = 3.0  # 2 to 4
  negative_share: float = 0.75


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgeConfig:
  """The judge and the verifiers (Appendix G).

  Attributes:
    votes: calls a criterion.
    max_failure_rate: a run stops when more of a step's votes fail.
    concurrency: most votes in flight.
    one_request: ask for all votes of a criterion as `n` samples of one request.
    template_path: a benchmark's published judge template, "" for ours.
    template_sha256: its hash, checked when given.
    faithful: paste answers into that template as its authors do, without the
      delimiters that keep an answer from addressing the judge.
    canary: grade an empty answer once a run; a score above 0 is an alarm.
    check_workers: processes that run verifiers; 0 runs them in the service.
    check_timeout_s: most seconds a verifier may take in such a process.
  """

  votes: int = 3
  max_failure_rate: float = 0.2
  concurrency: int = 32
  one_request: bool = False
  template_path: str = ""
  template_sha256: str = ""
  faithful: bool = False
  canary: bool = True
  check_workers: int = 0
  check_timeout_s: float = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndpointConfig:
  """An OpenAI-compatible server and how it may be used.

  Attributes:
    model: the model's name there; `self` for the policy's own first weights,
      frozen, in this process; "" in `endpoints.judge` means that the judge is
      the roles' model.
    base_url: such as http://127.0.0.1:8000/v1; "" for the SDK's default.
    api_key_env: environment variable with the key, "" for a server without.
    effort: reasoning effort to ask for, "" for none.
    reply_format: how a JSON reply is asked for; `auto` starts with the
      strictest and steps down when the server refuses it.
    max_tokens: limit of a reply, reasoning included.
    concurrency: most calls in flight.
    requests_per_minute: 0 for no limit.
    tokens_per_minute: 0 for no limit.
    timeout_s: of one attempt.
    deadline_s: of a call with all its attempts.
    attempts: most attempts of a call.
    outage_s: how long calls wait for a server that is down before they fail.
    price_in: US dollars a million prompt tokens.
    price_out: US dollars a million reply tokens.
  """

  model: str = ""
  base_url: str = ""
  api_key_env: str = "OPENAI_API_KEY"
  effort: str = ""
  reply_format: Literal["auto", "json_schema", "json_object", "text"] = "auto"
  max_tokens: int = 8192
  concurrency: int = 64
  requests_per_minute: int = 0
  tokens_per_minute: int = 0
  timeout_s: float = 120.0
  deadline_s: float = 600.0
  attempts: int = 6
  outage_s: float = 1800.0
  price_in: float = 0.0
  price_out: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndpointsConfig:
  """Servers of the frozen models; the story world needs none."""

  roles: EndpointConfig = EndpointConfig()
  judge: EndpointConfig = EndpointConfig()


# In place of a model's name: the weights that the policy starts from, frozen.
SELF: Final = "self"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalConfig:
  """The frozen weights in the roles that `endpoints` gives to `self`.

  Attributes:
    slots: replies drawn at a time.
    width: of them to one prompt, such as the votes of a judge (with
      `judge.one_request`), which then share its prefill.
    max_prompt: most tokens of a role's conversation.
    max_reply: most tokens of its reply.
    hold_schema: hold replies to the role's schema while they are drawn.
  """

  slots: int = 32
  width: int = 1
  max_prompt: int = 6144
  max_reply: int = 2048
  hold_schema: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class GateConfig:
  """What a judge must be worth before a run relies on it.

  Attributes:
    mode: `warn` measures and says what falls short, `refuse` does not start
      then, `off` measures nothing.
    min_agreement: verdicts on checkable criteria that are true.
    max_flip_rate: pairs of votes on one criterion that differ.
    max_position_bias: how much more often the referee prefers one position.
  """

  mode: Literal["off", "warn", "refuse"] = "off"
  min_agreement: float = 0.8
  max_flip_rate: float = 0.2
  max_position_bias: float = 0.3


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrievalConfig:
  """Reference passages that tasks are written from (Section 3).

  Attributes:
    index: folder made by `varl_jax.retrieval.build`; "" writes tasks without.
    encoder: what the index was built with, in the words of `--encoder`.
    lexical_only: leave the index's vectors aside.
    passages: shown to the generator, found for its request.
    max_chars: of one of them; longer ones are cut visibly.
    verify_answer_key: flag criteria whose values neither a passage nor the task
      nor arithmetic supports; the paper's arms do not.
  """

  index: str = ""
  encoder: str = ""
  lexical_only: bool = False
  passages: int = 5
  max_chars: int = 2000
  verify_answer_key: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolsConfig:
  """Tools that the solver may call (Appendix E).

  Attributes:
    names: of `clinical_search`, `web_search` and the domain's own, separated
      by commas; "" for none.
    max_calls: a rollout; later ones are told that the limit is reached.
    max_result_tokens: of one result; longer ones are cut visibly.
    timeout_s: of one call.
    passages: that a clinical search summarizes.
    web_engine: whose results a web search gives.
    web_url: where it answers, "" for the engine's own address.
    web_key_env: environment variable with its key.
    web_results: a search.
    web_mode: `replay` answers from `web_recordings` alone; `record` asks the
      engine what is not there and adds it, so that a step done again finds the
      same.
    web_recordings: file of recorded searches.
  """

  names: str = ""
  max_calls: int = 2
  max_result_tokens: int = 1024
  timeout_s: float = 60.0
  passages: int = 8
  web_engine: Literal["searxng", "brave", "tavily", "serper", "exa"] = "searxng"
  web_url: str = ""
  web_key_env: str = ""
  web_results: int = 5
  web_mode: Literal["replay", "record"] = "replay"
  web_recordings: str = ""

  @property
  def chosen(self) -> tuple[str, ...]:
    """The names."""
    parts = (name.strip() for name in self.names.split(","))
    return tuple(dict.fromkeys(name for name in parts if name))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceConfig:
  """Where the generation service runs and keeps its state.

  Attributes:
    url: of a service started by `varl_jax.serve`; "" runs it in a thread.
    token_env: environment variable with the token of that service.
    store_env: environment variable with a PostgreSQL address; "" keeps the
      state in `service.sqlite` of the run's folder.
  """

  url: str = ""
  token_env: str = "VARL_JAX_TOKEN"
  store_env: str = ""


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
  """Exploit cases and patches in training (Appendix C).

  Ours are `referee_share`, of a step's groups the share that the blind referee
  is asked about (see `DiscriminatorConfig`), and `verify_pairs` and
  `stop_equal`, checks of a pair before its repair (see `service.pair_check`).
  """

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
  referee_share: float = 1.0
  verify_pairs: bool = False
  stop_equal: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiscriminatorConfig:
  """A second head on the trunk that tells good answers from bad (ours).

  It learns from the referee's rankings which groups hide an exploit, so that
  with `patch.referee_share` below 1 the referee is asked about those. It costs
  one forward pass of a step's answers.

  Attributes:
    on: off in the paper's arms.
    learning_rate: of its AdamW; about the most nats by which one update moves
      what it thinks of an answer.
    decay: its weight decay.
    repaired_weight: of the pair of a repaired case; a ranked group weighs 1.
    warmup_updates: updates before its word counts; until then, and without a
      head, the groups are drawn at random.
  """

  on: bool = False
  learning_rate: float = 3.0
  decay: float = 1e-2
  repaired_weight: float = 1.0
  warmup_updates: int = 5


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
class RarConfig:
  """Rubrics as Rewards, see `rubrics.checklists`.

  Attributes:
    aggregation: `implicit`, the authors' best, is one rating of an answer;
      `explicit` has every item judged.
    pitfalls: what an item of that category describes.
    parts: smaller tasks that each generated one is split into.
    tasks: length of the static list, smaller tasks counted.
  """

  aggregation: Literal["implicit", "explicit"] = "implicit"
  pitfalls: Literal["avoided", "committed"] = "avoided"
  parts: int = 2
  tasks: int = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvoConfig:
  """EvoRubrics, see `methods.evo_rubrics`.

  Both adapters have the targets and the alpha of `lora`, and its rank, or the
  authors' where that is 0. The answers a task are `train.samples`.

  Attributes:
    sets: rubric sets a task.
    max_set: tokens of one at most; 0 for `model.max_response`.
    generator_start: folder of the adapter that the rubric generator begins
      with, or `story`, the one in this package; "" begins with a new one.
    learning_rate: of the policy's adapter; 0 for `train.learning_rate`.
    generator_learning_rate: of the generator's; likewise.
    reference: whether likeness to the rubric that the frozen generator wrote is
      rewarded; without it, as where there is no reference, that part is left
      out.
    reflect: whether an answer is revised with each set and what it gains is
      rewarded.
  """

  sets: int = 4
  max_set: int = 0
  generator_start: str = ""
  learning_rate: float = 0.0
  generator_learning_rate: float = 0.0
  reference: bool = False
  reflect: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
  """Validation on held-out tasks, every `interval` steps and at the end.

  `tasks_path` holds the data of `benchmark`, which the judge grades; all of
  them are used. `tasks` names the project's own form, one `types.Task` a line;
  other names are those of `varl_jax.benchmarks`. Without data the domain draws
  `tasks` of its own, if it can.
  """

  interval: int = 5
  tasks: int = 64
  tasks_path: str = ""
  benchmark: str = "tasks"
  samples: int = 1
  temperature: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
  """A checkpoint every `interval` steps; `keep` of them stay.

  With `background` a checkpoint is written while the next step runs, which
  takes the memory of one more copy of the state on the hosts.
  """

  interval: int = 5
  keep: int = 2
  background: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig:
  """What is kept for reports beside metrics, see `rollout_log`.

  Attributes:
    rollouts: answers a step that are kept token by token; 0 for none.
    max_tokens: of one of them; the rest is left out.
  """

  rollouts: int = 4
  max_tokens: int = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """All settings of one run.

  `init_from` is the folder of another run, whose newest weights this one starts
  with; "" starts with those of `model.path`.
  """

  name: str = "run"
  seed: int = 0
  init_from: str = ""
  domain: str = "story"
  description: str = ""
  model: ModelConfig = ModelConfig()
  mesh: MeshConfig = MeshConfig()
  lora: LoraConfig = LoraConfig()
  train: TrainConfig = TrainConfig()
  reward: RewardConfig = RewardConfig()
  rubric: RubricConfig = RubricConfig()
  judge: JudgeConfig = JudgeConfig()
  endpoints: EndpointsConfig = EndpointsConfig()
  retrieval: RetrievalConfig = RetrievalConfig()
  tools: ToolsConfig = ToolsConfig()
  local: LocalConfig = LocalConfig()
  gate: GateConfig = GateConfig()
  service: ServiceConfig = ServiceConfig()
  pool: PoolConfig = PoolConfig()
  admission: AdmissionConfig = AdmissionConfig()
  patch: PatchConfig = PatchConfig()
  discriminator: DiscriminatorConfig = DiscriminatorConfig()
  evolution: EvolutionConfig = EvolutionConfig()
  memo: MemoConfig = MemoConfig()
  method: MethodConfig = MethodConfig()
  rar: RarConfig = RarConfig()
  evo: EvoConfig = EvoConfig()
  eval: EvalConfig = EvalConfig()
  checkpoint: CheckpointConfig = CheckpointConfig()
  report: ReportConfig = ReportConfig()

  def to_dict(self) -> dict[str, Any]:
    """The tree as plain values."""
    return dataclasses.asdict(self)

  def shaping(self) -> dict[str, Any]:
    """The tree without settings that leave results alone.

    How long, on which devices, how fast and through which server is left out:
    a run may go on elsewhere.
    """
    tree = self.to_dict()
    for path in MAY_CHANGE:
      *groups, name = path.split(".")
      del functools.reduce(dict.__getitem__, groups, tree)[name]
    for endpoint in tree["endpoints"].values():
      for key in set(endpoint) - set(SHAPES_REPLIES):
        del endpoint[key]
    # An index may lie elsewhere on another machine.
    tree["retrieval"]["index"] = bool(tree["retrieval"]["index"])
    return tree

  def fingerprint(self) -> str:
    """Hash of every setting that shapes results, see `shaping`."""
    text = json.dumps(self.shaping(), sort_keys=True)
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
  "mesh.data",
  "mesh.fsdp",
  "mesh.tensor",
  "train.steps",
  "train.tasks_per_step",
  "train.minibatch_tasks",
  "train.min_graded",
  "judge.votes",
  "judge.concurrency",
  "report.max_tokens",
  *(
    f"endpoints.{name}.{key}"
    for name in ("roles", "judge")
    for key in ("max_tokens", "concurrency", "attempts")
  ),
  "local.slots",
  "local.width",
  "local.max_prompt",
  "local.max_reply",
  "retrieval.passages",
  "retrieval.max_chars",
  "tools.max_calls",
  "tools.passages",
  "tools.web_results",
  "pool.window",
  "pool.capacity",
  "admission.rounds",
  "admission.concurrency",
  "patch.rounds",
  "patch.cases_per_step",
  "evolution.interval",
  "evolution.cases",
  "memo.observations",
  "rar.parts",
  "rar.tasks",
  "eval.samples",
  "eval.tasks",
  "checkpoint.interval",
  "checkpoint.keep",
)
_AT_LEAST_ZERO = (
  "lora.rank",
  "judge.check_workers",
  *(
    f"endpoints.{name}.{key}"
    for name in ("roles", "judge")
    for key in (
      "requests_per_minute",
      "tokens_per_minute",
      "outage_s",
      "price_in",
      "price_out",
    )
  ),
  "train.micro_batch",
  "train.staleness",
  "train.stall_s",
  "train.length_bucket",
  "train.warmup_updates",
  "train.weight_decay",
  "pool.floor",
  "eval.interval",
  "report.rollouts",
  "patch.epsilon",
  "patch.min_gap_removed",
  "discriminator.decay",
  "discriminator.repaired_weight",
  "discriminator.warmup_updates",
  "admission.margin",
  "admission.min_drop",
  "admission.min_answer_chars",
  "memo.kappa",
  "memo.tolerance",
  "evo.max_set",
  "evo.learning_rate",
  "evo.generator_learning_rate",
)
_POSITIVE = (
  "tools.timeout_s",
  "lora.alpha",
  "judge.check_timeout_s",
  *(
    f"endpoints.{name}.{key}"
    for name in ("roles", "judge")
    for key in ("timeout_s", "deadline_s")
  ),
  "train.temperature",
  "train.learning_rate",
  "train.max_grad_norm",
  "train.clip_ratio",
  "train.importance_cap",
  "reward.length_unit",
  "patch.referee_share",
  "discriminator.learning_rate",
  "eval.temperature",
)
_SHARES = (
  "gate.min_agreement",
  "gate.max_flip_rate",
  "gate.max_position_bias",
  "rubric.negative_share",
  "judge.max_failure_rate",
  "pool.replay_share",
  "patch.referee_share",
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
    return functools.reduce(getattr, path.split("."), config)

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
  if not 2 <= config.rubric.positive_mean <= 4:
    raise ConfigError(
      "rubric.positive_mean is between 2 and 4, got"
      f" {config.rubric.positive_mean}."
    )
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
  if config.evo.sets < 2:
    raise ConfigError(
      "evo.sets is at least 2 (advantages compare the sets of a task), got"
      f" {config.evo.sets}."
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
  if config.tools.max_result_tokens < 8:
    raise ConfigError(
      "tools.max_result_tokens is at least 8, or no result says anything; got"
      f" {config.tools.max_result_tokens}."
    )
  if config.pool.floor > config.pool.capacity:
    raise ConfigError(
      "pool.floor is at most pool.capacity, got"
      f" {config.pool.floor} and {config.pool.capacity}."
    )
