"""One policy for several runs: it compiles once and is trained often."""

import dataclasses
from typing import TypeVar

import jax
import jax.numpy as jnp

from varl_jax.build import Policy
from varl_jax.companions import Companion

Made = TypeVar("Made", Policy, Companion)


def with_own_weights(policy: Policy) -> Policy:
  """The same with a copy of its weights: a run takes over what it is given."""

  def own(made: Made) -> Made:
    # A trunk below adapters is not trained, and shared.
    names = ["lora"] if "lora" in made.params else list(made.params)
    copies = {n: jax.tree.map(jnp.copy, made.params[n]) for n in names}
    return dataclasses.replace(made, params={**made.params, **copies})

  companions = tuple(own(made) for made in policy.companions)
  return dataclasses.replace(own(policy), companions=companions)
