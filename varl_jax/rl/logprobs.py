"""Log-probabilities of given tokens through a chunked LM head.

The head's products and their gradient are `varl_kernels.logprob`: only one
chunk of positions has its [B, chunk, V] float32 logits alive. Here is how much
that is, and how a mesh splits it: the vocabulary over `fsdp` and `tensor`, and
a chunk's rows over `data` alone. The chunk's hidden states travel, the head and
its gradient do not. The gradient is summed over `data` once, behind the last
chunk.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from jaxtyping import Array, Bool, Float, Int
from varl_kernels.head import masked_logits
from varl_kernels.logprob import api
from varl_kernels.logprob.reference import Layout

from varl_jax.models.sharding import axes_of, constrain, mesh_in_use, parts

__all__ = ["MAX_LOGITS", "forbidden_mask", "masked_logits", "token_logprobs"]

# Logits alive at once on a device with chunk=0: 2**24 float32, 64 MiB.
MAX_LOGITS: Final = 2**24


def forbidden_mask(forbidden_ids: Sequence[int], vocab_size: int) -> np.ndarray:
  """Bool [V], True for ids that are never sampled."""
  mask = np.zeros(vocab_size, bool)
  mask[list(forbidden_ids)] = True
  return mask


def token_logprobs(
  hidden: Float[Array, "B R D"],
  head: Float[Array, "V D"],
  targets: Int[Array, "B R"],
  *,
  forbidden: Bool[Array, "V"],
  temperature: float = 1.0,
  chunk: int = 0,
) -> tuple[Float[Array, "B R"], Float[Array, "B R"]]:
  """Log-probability of each target and entropy of its distribution.

  Position r of `hidden` predicts position r of `targets`: the caller shifts.

  Args:
    hidden: [B, R, D], finite everywhere (0 where it does not matter).
    head: [V, D].
    targets: [B, R] ids.
    forbidden: [V], ids taken out before the normalization; -inf as a target.
    temperature: divides the logits.
    chunk: positions of R whose logits are alive at once; 0 picks the most that
      stay under `MAX_LOGITS` values.

  Returns:
    float32 log-probabilities (nats, at most 0) and entropies (nats), each
    [B, R]. Gradients flow through the former only.
  """
  rows, length, _ = hidden.shape
  if chunk <= 0:
    vocab = head.shape[0] // parts("head_vocab", head.shape[0])
    chunk = MAX_LOGITS // (rows // parts("head_rows", rows) * vocab)
  return api.token_logprobs(
    hidden,
    head,
    targets,
    forbidden=forbidden,
    temperature=temperature,
    chunk=chunk,
    layout=_layout(rows, head.shape[0]),
  )


def _layout(rows: int, vocab: int) -> Layout:
  """How the mesh in use splits rows and vocabulary."""
  mesh = mesh_in_use()
  if mesh is None:
    return Layout()
  return Layout(
    constrain=constrain,
    parts=parts,
    mesh=mesh,
    rows=axes_of("head_rows", rows),
    vocab=axes_of("head_vocab", vocab),
  )
