"""Training for MedXpertQA by its description: medical exam questions.

    python -m varl_jax.main --config=configs/medxpertqa.py \
        --config.model.path=/models/Qwen3.5-9B --plan

Training reads no item of the benchmark, only `prompts/medical_exam`. The
solver's size stands after a colon: `9b` (the default) or `27b`. Roles and judge
are GPT-5.5-Chat, or any OpenAI-compatible server. The
benchmark's score has no length term. Tasks have one right answer and still
several weighted criteria: they ask for the decision and what justifies it.

Tasks are written from reference passages, of the same index as those of
`configs/healthbench_professional.py`. The solver searches that index too, and
the web by a SearXNG on this machine, its JSON format on (`tools.web_engine`
names others). Without an index: `--config.retrieval.index=''
--config.tools.names=web_search`.

With held-out tasks at hand (one `types.Task` a line) add

    --config.eval.tasks_path=tasks.jsonl --config.eval.interval=5

or, to validate on the benchmark's own rows (docs/benchmarks.md),

    --config.eval.tasks_path=medxpertqa_text.jsonl --config.eval.interval=5 \
        --config.eval.benchmark=medxpertqa_text
"""

import ml_collections

from varl_jax.paper_setting import MEDICAL_TOOLS, SOLVERS, paper_setting


def get_config(variant: str = "9b") -> ml_collections.ConfigDict:
  """The settings of one variant."""
  if variant not in SOLVERS:
    raise ValueError(
      f"configs/medxpertqa.py has no variant {variant!r}; choose"
      f" {', '.join(SOLVERS)}."
    )
  config = paper_setting(
    name=f"medxpertqa_{variant}",
    domain="medical_exam",
    solver=variant,
    tools=MEDICAL_TOOLS,
  )
  config.retrieval.index = "indexes/clinical"
  return config
