"""The paper's main setting: training for HealthBench Professional.

    python -m varl_jax.main --config=configs/healthbench_professional.py \
        --config.model.path=/models/Qwen3.5-9B --plan

Training reads no item of the benchmark, only `prompts/clinical`. After a colon:

| variant | solver | roles and judge |
|---|---|---|
| `9b` (the default) | Qwen3.5-9B | GPT-5.5-Chat |
| `27b` | Qwen3.6-27B | GPT-5.5-Chat |
| `all_self` | Qwen3.5-9B | the frozen Qwen3.5-9B, served locally |
| `no_retrieval` | Qwen3.5-9B | likewise, without passages and search |
| `generation_only`, `co_evolve` (arms) | Qwen3.5-9B | GPT-5.5-Chat |

Tasks are written from reference passages, in all variants but `no_retrieval`.
Their index is built once, a call a source at hand:

    python -m varl_jax.retrieval.build --source=icd10cm --path=tabular.xml \
        --index=indexes/clinical

It may lie elsewhere (`--config.retrieval.index=FOLDER`). The solver's own
search is still to come.

`model.path` is a folder with the solver's weights. Roles and judge are any
OpenAI-compatible servers; the key stands in the environment. A locally served
base model is expected at `LOCAL`, as vLLM or SGLang offer it. With held-out
tasks at hand (one `types.Task` a line) add

    --config.eval.tasks_path=tasks.jsonl --config.eval.interval=5
"""

import ml_collections

from varl_jax.config import Config

VARIANTS = (
  "9b",
  "27b",
  "all_self",
  "no_retrieval",
  "generation_only",
  "co_evolve",
)
LOCAL = "http://127.0.0.1:8000/v1"


def get_config(variant: str = "9b") -> ml_collections.ConfigDict:
  """The settings of one variant."""
  if variant not in VARIANTS:
    raise ValueError(
      "configs/healthbench_professional.py has no variant"
      f" {variant!r}; choose {', '.join(VARIANTS)}."
    )
  config = ml_collections.ConfigDict(Config().to_dict())
  config.name = f"healthbench_professional_{variant}"
  config.domain = "clinical"
  config.update(
    # Reasoning is on and counts as part of the response. Lengths in tokens.
    model=dict(
      path="Qwen/Qwen3.5-9B",
      compute_dtype="bfloat16",
      remat=True,
      max_prompt=6144,
      max_response=8192,
      reasoning=True,
    ),
    mesh=dict(data=1, fsdp=4, tensor=1),  # four accelerators, as in the paper
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
    reward=dict(
      length_adjusted=True,
      length_weight=0.0147,
      length_center=2000,
      length_unit=500,
    ),
    retrieval=dict(index="indexes/clinical"),
    judge=dict(votes=3, concurrency=256),
    endpoints=dict(
      roles=dict(model="gpt-5.5-chat", api_key_env="OPENAI_API_KEY"),
      judge=dict(
        model="gpt-5.5-chat", api_key_env="OPENAI_API_KEY", concurrency=256
      ),
    ),
    evolution=dict(interval=5),
    eval=dict(interval=0, samples=1, temperature=1.0),
    checkpoint=dict(interval=5, keep=2),
  )
  if variant == "27b":
    config.update(
      model=dict(path="Qwen/Qwen3.6-27B"),
      mesh=dict(fsdp=8),  # fp32 weights and moments alone take 432 GB
      train=dict(micro_batch=8),
    )
  if variant in ("all_self", "no_retrieval"):
    served = dict(model="Qwen/Qwen3.5-9B", base_url=LOCAL, api_key_env="")
    config.update(endpoints=dict(roles=served, judge=served))
  if variant == "no_retrieval":
    config.retrieval.index = ""
  if variant == "generation_only":
    config.method.name = "generation_only"
  if variant == "co_evolve":
    config.method.name = "co_evolve_only"
  return config
