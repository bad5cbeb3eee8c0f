"""Training for PRBench Hard by its description: finance and law.

    python -m varl_jax.main --config=configs/prbench.py \
        --config.model.path=/models/Qwen3.5-9B --plan

Training reads no item of the benchmark, only `prompts/finance_law`. The
solver's size stands after a colon: `9b` (the default) or `27b`. Roles and judge
are GPT-5.5-Chat, or any OpenAI-compatible server. The
benchmark's score has no length term.

The solver may search the web. A SearXNG is expected on this machine, its JSON
format on; other engines are named by `tools.web_engine` and the variable of
their key, `--config.tools.names=''` takes the search away.

With held-out tasks at hand (one `types.Task` a line) add

    --config.eval.tasks_path=tasks.jsonl --config.eval.interval=5

or, to validate on the benchmark's own rows (docs/benchmarks.md),

    --config.eval.tasks_path=PRBench --config.eval.interval=5 \
        --config.eval.benchmark=prbench_hard
"""

import ml_collections

from varl_jax.paper_setting import SOLVERS, WEB_TOOLS, paper_setting


def get_config(variant: str = "9b") -> ml_collections.ConfigDict:
  """The settings of one variant."""
  if variant not in SOLVERS:
    raise ValueError(
      f"configs/prbench.py has no variant {variant!r}; choose"
      f" {', '.join(SOLVERS)}."
    )
  return paper_setting(
    name=f"prbench_{variant}",
    domain="finance_law",
    solver=variant,
    tools=WEB_TOOLS,
  )
