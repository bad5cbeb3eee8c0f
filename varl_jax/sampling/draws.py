"""The next token of every row, drawn from its hidden state.

Sampler and trainer share the head's arithmetic (`varl_kernels.head`), so that
the behaviour policy is the policy.
"""

import jax
from jaxtyping import Array, Bool, Float, Int, Key
from varl_kernels.backends import choose
from varl_kernels.sampling.api import sample, sample_sharded

from varl_jax.models.sharding import axes_of, mesh_in_use, mesh_sizes, spec


def draw_tokens(
  hidden: Float[Array, "*B D"],
  head: Float[Array, "V D"],
  keys: Key[Array, "*B"],
  *,
  forbidden: Bool[Array, "V"],
  temperature: float,
) -> tuple[Int[Array, "*B"], Float[Array, "*B"]]:
  """Draws from softmax(where(forbidden, -inf, hidden head^T / temperature)).

  Args:
    hidden: states behind the final norm.
    head: the output head.
    keys: threefry keys, one a draw.
    forbidden: ids that are never drawn.
    temperature: T > 0.

  Returns:
    int32 ids and float32 log-probabilities (nats). An id depends on the row's
    state and key alone.
  """
  seeds, mesh = jax.random.key_data(keys), mesh_in_use()
  args = (hidden, head, seeds)
  if mesh is None or choose("auto") == "reference":
    return sample(*args, forbidden=forbidden, temperature=temperature)
  batch = hidden.shape[:-1]
  return sample_sharded(
    *args,
    mesh=mesh,
    rows=spec(("batch",) * len(batch), batch, mesh_sizes()),
    vocab=axes_of("vocab", head.shape[0]),
    forbidden=forbidden,
    temperature=temperature,
  )
