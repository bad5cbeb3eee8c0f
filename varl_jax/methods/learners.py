"""What a method trains, as data; the trainer builds it and asks no more.

The first learner is the policy: it answers the tasks of the pool and is
validated. Every other one is sampled in the same step on what the service gives
out as `prompts_for` it, and is paid what `rewards_for` it says.
"""

import dataclasses
from typing import Final

from varl_jax.config import Config, LoraConfig, TrainConfig

POLICY: Final = "policy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerSpec:
  """Weights that are trained on a trunk that all learners of a run share.

  Attributes:
    name: unique in the run; names its part of a checkpoint.
    lora: rank, alpha and targets of its adapter; rank 0 trains the trunk
      itself, which the only learner of a run alone can do.
    train: its optimizer, clip, mini-batches and samples a prompt.
    max_response: tokens of what it writes.
    start: folder of the adapter it begins with, or a built-in name; "" for a
      new one.
  """

  name: str
  lora: LoraConfig
  train: TrainConfig
  max_response: int
  start: str = ""


def policy_alone(config: Config) -> tuple[LearnerSpec, ...]:
  """The policy, trained as the settings say."""
  return (
    LearnerSpec(
      name=POLICY,
      lora=config.lora,
      train=config.train,
      max_response=config.model.max_response,
    ),
  )
