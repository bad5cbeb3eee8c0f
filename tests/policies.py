"""One policy for several runs: it compiles once and is trained often."""

import dataclasses

import jax
import jax.numpy as jnp

from varl_jax.build import Policy


def with_own_weights(policy: Policy) -> Policy:
  """The same with a copy of its weights: a run takes over what it is given."""
  weights = jax.tree.map(jnp.copy, policy.params)
  return dataclasses.replace(policy, params=weights)
