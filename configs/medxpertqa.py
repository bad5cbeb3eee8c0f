"""Training for MedXpertQA by its description: medical exam questions.

    python -m varl_jax.main --config=configs/medxpertqa.py \
        --config.model.path=/models/Qwen3.5-9B --plan

Training reads no item of the benchmark, only `prompts/medical_exam`. The
solver's size stands after a colon: `9b` (the default) or `27b`. Roles and judge
are GPT-5.5-Chat, or any OpenAI-compatible server. The
benchmark's score has no length term. Tasks have one right answer and still
several weighted criteria: they ask for the decision and what justifies it.

Tasks are written from reference passages, of the same index as those of
`configs/healthbench_professional.py` (`--config.retrieval.index=''` for none).
With held-out tasks at hand (one `types.Task` a line) add

    --config.eval.tasks_path=tasks.jsonl --config.eval.interval=5
"""

import ml_collections

from varl_jax.config import Config

MODELS = {"9b": "Qwen/Qwen3.5-9B", "27b": "Qwen/Qwen3.6-27B"}


def get_config(variant: str = "9b") -> ml_collections.ConfigDict:
  """The settings of one variant."""
  if variant not in MODELS:
    raise ValueError(
      f"configs/medxpertqa.py has no variant {variant!r}; choose"
      f" {', '.join(MODELS)}."
    )
  config = ml_collections.ConfigDict(Config().to_dict())
  config.name = f"medxpertqa_{variant}"
  config.domain = "medical_exam"
  config.update(
    model=dict(
      path=MODELS[variant],
      compute_dtype="bfloat16",
      remat=True,
      max_prompt=6144,
      max_response=8192,
      reasoning=True,
    ),
    mesh=dict(data=1, fsdp=8 if variant == "27b" else 4, tensor=1),
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
    reward=dict(length_adjusted=False),
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
  return config
