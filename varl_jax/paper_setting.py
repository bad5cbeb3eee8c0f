"""What the paper's trainings on benchmarks have in common (Appendix E)."""

import dataclasses
from typing import Final

import ml_collections

from varl_jax.config import Config


@dataclasses.dataclass(frozen=True)
class Solver:
  """A solver and the devices that its training is spread over.

  Attributes:
    path: its name at its publisher; a run takes a folder with the weights.
    fsdp: devices among which weights and moments are split.
  """

  path: str
  fsdp: int


SOLVERS: Final = {
  "9b": Solver("Qwen/Qwen3.5-9B", 4),  # four accelerators, as in the paper
  # Weights and moments in float32 alone take 432 GB.
  "27b": Solver("Qwen/Qwen3.6-27B", 8),
}
TEACHER: Final = dict(model="gpt-5.5-chat", api_key_env="OPENAI_API_KEY")
# The solver's tools (section 3, Appendix E): where there is nothing clinical to
# look up, the web alone.
MEDICAL_TOOLS: Final = "clinical_search,web_search"
WEB_TOOLS: Final = "web_search"


def paper_setting(
  *, name: str, domain: str, solver: str, tools: str
) -> ml_collections.ConfigDict:
  """The settings of a training run; lengths in tokens, reasoning included.

  Args:
    name: of the run.
    domain: whose prompts write its tasks.
    solver: a key of `SOLVERS`.
    tools: `ToolsConfig.names`. Web searches go to a SearXNG on this machine.
  """
  chosen = SOLVERS[solver]
  config = ml_collections.ConfigDict(Config().to_dict())
  config.name = name
  config.domain = domain
  config.update(
    model=dict(
      path=chosen.path,
      compute_dtype="bfloat16",
      remat=True,
      max_prompt=6144,
      max_response=8192,
      reasoning=True,
    ),
    mesh=dict(data=1, fsdp=chosen.fsdp, tensor=1),
    train=dict(
      steps=100,  # the paper gives no number
      tasks_per_step=64,
      samples=8,
      minibatch_tasks=16,
      micro_batch=8,
      temperature=1.0,
      learning_rate=1e-6,
      clip_ratio=0.2,
    ),
    tools=dict(
      names=tools,
      max_calls=2,
      web_engine="searxng",
      web_url="http://127.0.0.1:8888",
      web_mode="record",
      web_recordings="web_searches.jsonl",
    ),
    reward=dict(length_adjusted=False),
    judge=dict(votes=3, concurrency=256),
    endpoints=dict(roles=TEACHER, judge=dict(TEACHER, concurrency=256)),
    evolution=dict(interval=5),
    eval=dict(interval=0, samples=1, temperature=1.0),
    checkpoint=dict(interval=5, keep=2),
  )
  return config
