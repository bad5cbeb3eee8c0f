"""Training for ProfBench by its description: expert reports.

    python -m varl_jax.main --config=configs/profbench.py \
        --config.model.path=/models/Qwen3.5-9B --plan

Training reads no item of the benchmark, only `prompts/expert_reports`. The
solver's size stands after a colon: `9b` (the default) or `27b`. Roles and judge
are GPT-5.5-Chat, or any OpenAI-compatible server. The
benchmark's score has no length term.

The solver may search the web. A SearXNG is expected on this machine, its JSON
format on; other engines are named by `tools.web_engine` and the variable of
their key, `--config.tools.names=''` takes the search away.

With held-out tasks at hand (one `types.Task` a line) add

    --config.eval.tasks_path=tasks.jsonl --config.eval.interval=5

or, to validate on the benchmark's own rows (docs/benchmarks.md),

    --config.eval.tasks_path=profbench.jsonl --config.eval.interval=5 \
        --config.eval.benchmark=profbench
"""

import ml_collections

from varl_jax.paper_setting import SOLVERS, WEB_TOOLS, paper_setting


def get_config(variant: str = "9b") -> ml_collections.ConfigDict:
  """The settings of one variant."""
  if variant not in SOLVERS:
    raise ValueError(
      f"configs/profbench.py has no variant {variant!r}; choose"
      f" {', '.join(SOLVERS)}."
    )
  return paper_setting(
    name=f"profbench_{variant}",
    domain="expert_reports",
    solver=variant,
    tools=WEB_TOOLS,
  )
