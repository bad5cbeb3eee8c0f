"""The whole loop on the offline story world: no network, key, GPU or download.

    python -m varl_jax.main --config=configs/story.py

After a colon, one of: `rri` (the default), `co_evolve_only`,
`generation_only`, `rar`, `sibyl_sense`, `evo_rubrics` (the paper's arms,
Section 4), `smollm2` (a real 135M instruct model as the policy; needs the extra
of that name), `lookup` (the policy may look up what a rubric asks for and no
request tells).

Every number that differs from the paper's is scaled to stories of some fifty
words and a policy of 0.2M parameters.
"""

import ml_collections

from varl_jax.config import Config

METHODS = (
  "rri",
  "co_evolve_only",
  "generation_only",
  "rar",
  "sibyl_sense",
  "evo_rubrics",
)
OTHERS = ("smollm2", "lookup")


def get_config(variant: str = "rri") -> ml_collections.ConfigDict:
  """The settings of one variant."""
  if variant not in (*METHODS, *OTHERS):
    raise ValueError(
      f"configs/story.py has no variant {variant!r}; choose"
      f" {', '.join((*METHODS, *OTHERS))}."
    )
  config = ml_collections.ConfigDict(Config().to_dict())
  config.name = "story" if variant == "rri" else f"story_{variant}"
  config.domain = "story"
  config.method.name = variant if variant in METHODS else "rri"
  config.update(
    model=dict(path="story", max_prompt=48, max_response=64),
    train=dict(
      steps=40,
      tasks_per_step=16,
      samples=8,
      minibatch_tasks=4,
      micro_batch=4,
      learning_rate=3e-4,
      warmup_updates=8,
    ),
    # 2,000 characters would never bind: a story has about 220.
    reward=dict(length_weight=0.1, length_center=230, length_unit=60),
    # Tasks cost nothing here, so nearly every serving is a fresh one.
    pool=dict(capacity=1024),
    method=dict(measure_exploits=True),
    admission=dict(barrier=True),
    evolution=dict(interval=5),
    # Adapters are fewer weights than all, and so move faster.
    evo=dict(
      max_set=64,
      generator_start="story",
      learning_rate=1e-3,
      generator_learning_rate=1e-3,
    ),
    eval=dict(interval=5, tasks=48, samples=8),
    checkpoint=dict(interval=5),
  )
  if variant == "smollm2":
    _use_smollm2(config)
  if variant == "lookup":
    _use_lookup(config)
  return config


def _use_lookup(config: ml_collections.ConfigDict) -> None:
  """Room for a call and its result; rubrics as they are first written."""
  config.update(
    model=dict(path="story_lookup", max_prompt=56, max_response=104),
    tools=dict(names="lookup", max_calls=1, max_result_tokens=24),
    evo=dict(generator_start=""),
    method=dict(name="generation_only", measure_exploits=False),
  )


def _use_smollm2(config: ml_collections.ConfigDict) -> None:
  """A few steps of the real model within the patience of a CPU."""
  config.update(
    model=dict(path="smollm2", max_prompt=320, max_response=96),
    train=dict(
      steps=3,
      tasks_per_step=2,
      samples=4,
      minibatch_tasks=1,
      learning_rate=1e-5,
    ),
    reward=dict(length_center=420),
    evo=dict(generator_start=""),
    pool=dict(capacity=16),
    eval=dict(interval=3, tasks=2, samples=2),
    checkpoint=dict(interval=1, keep=1),
  )
