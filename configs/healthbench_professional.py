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

It may lie elsewhere (`--config.retrieval.index=FOLDER`). The solver searches it
too, and the web: a SearXNG is expected on this machine, port 8888, its JSON
format on. Other engines are named by `tools.web_engine` and the variable of
their key.

`model.path` is a folder with the solver's weights. Roles and judge are any
OpenAI-compatible servers; the key stands in the environment. A locally served
base model is expected at `LOCAL`, as vLLM or SGLang offer it. With held-out
tasks at hand (one `types.Task` a line) add

    --config.eval.tasks_path=tasks.jsonl --config.eval.interval=5

or, to validate on the benchmark's own rows (docs/benchmarks.md),

    --config.eval.tasks_path=professional.jsonl --config.eval.interval=5 \
        --config.eval.benchmark=healthbench_professional
"""

import ml_collections

from varl_jax.paper_setting import MEDICAL_TOOLS, paper_setting

VARIANTS = (
  "9b",
  "27b",
  "all_self",
  "no_retrieval",
  "generation_only",
  "co_evolve",
)
INDEX = "indexes/clinical"
LOCAL = "http://127.0.0.1:8000/v1"


def get_config(variant: str = "9b") -> ml_collections.ConfigDict:
  """The settings of one variant."""
  if variant not in VARIANTS:
    raise ValueError(
      "configs/healthbench_professional.py has no variant"
      f" {variant!r}; choose {', '.join(VARIANTS)}."
    )
  config = paper_setting(
    name=f"healthbench_professional_{variant}",
    domain="clinical",
    solver="27b" if variant == "27b" else "9b",
    tools="" if variant == "no_retrieval" else MEDICAL_TOOLS,
  )
  config.reward.update(
    length_adjusted=True,
    length_weight=0.0147,
    length_center=2000,
    length_unit=500,
  )
  config.retrieval.index = "" if variant == "no_retrieval" else INDEX
  if variant in ("all_self", "no_retrieval"):
    served = dict(model=config.model.path, base_url=LOCAL, api_key_env="")
    config.update(endpoints=dict(roles=served, judge=served))
  if variant == "generation_only":
    config.method.name = "generation_only"
  if variant == "co_evolve":
    config.method.name = "co_evolve_only"
  return config
