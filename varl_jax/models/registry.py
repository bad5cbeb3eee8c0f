"""The model class of a config, and what every such class offers.

A prompt's state and a cache are the model's own: the sampler carries them and
reads and sets only `cache.filled.live`.
"""

from collections.abc import Callable
from typing import Any, Protocol

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from varl_jax.models.layers import Params
from varl_jax.models.llama import Llama, LlamaConfig
from varl_jax.models.qwen3_5 import Qwen35
from varl_jax.models.qwen3_5_shape import (
  Qwen35Config,
  qwen3_5_9b,
  qwen3_6_27b,
)

ModelConfig = LlamaConfig | Qwen35Config


class CausalModel(Protocol):
  """A decoder up to the final norm; `rl.logprobs` has the output head."""

  @property
  def config(self) -> Any:
    """The shape; has vocab_size, hidden_size and max_position."""
    ...

  def init(self, rngs: Any, tokens: Int[Array, "B L"]) -> Params:
    """Draws fp32 parameters."""
    ...

  def hidden(
    self,
    params: Params,
    tokens: Int[Array, "B L"],
    lengths: Int[Array, " B"] | None = None,
  ) -> Float[Array, "B L D"]:
    """Final hidden states of right-padded rows, zero at padding."""
    ...

  def prefill(
    self,
    params: Params,
    tokens: Int[Array, "G P"],
    lengths: Int[Array, " G"],
  ) -> tuple[Float[Array, "G D"], Any]:
    """Hidden state of each prompt's last token, and the prompts' state."""
    ...

  def start(
    self,
    prompt: Any,
    prompt_lengths: Int[Array, " G"],
    *,
    samples: int,
    slots: int,
    recent: int,
  ) -> Any:
    """A cache for `samples` answers a prompt.

    Room for `slots` tokens that are settled and `recent` ones that are not.
    """
    ...

  def admit(
    self,
    cache: Any,
    prompt: Any,
    lengths: Int[Array, " c"],
    lanes: Int[Array, " c"],
  ) -> Any:
    """The cache with prompts in these places; one past the end is dropped."""
    ...

  def begin(self, cache: Any, mask: Bool[Array, "G n"]) -> Any:
    """The cache with empty answers where `mask` says."""
    ...

  def decode(
    self, params: Params, tokens: Int[Array, "G n"], cache: Any
  ) -> tuple[Float[Array, "G n D"], Any]:
    """Runs one new token a row; returns its hidden state and the new cache."""
    ...

  def settle(self, cache: Any, counts: Int[Array, "G n"]) -> Any:
    """Moves each row's `counts` newest tokens to where they stay."""
    ...

  def cache_axes(self) -> Any:
    """The logical axes of a cache's arrays, in a cache's tree."""
    ...

  def lm_head_weight(self, params: Params) -> Float[Array, "V D"]:
    """The output head."""
    ...

  def axes(self) -> Params:
    """The logical axes of every parameter, in the parameters' tree."""
    ...


# Shapes that can be planned for without a checkpoint.
SHAPES: dict[str, Callable[[], ModelConfig]] = {
  "qwen3_5_9b": qwen3_5_9b,
  "qwen3_6_27b": qwen3_6_27b,
}
MODELS: dict[type, Any] = {LlamaConfig: Llama, Qwen35Config: Qwen35}


def make_model(
  config: ModelConfig, *, dtype: Any = jnp.float32, remat: bool = False
) -> CausalModel:
  """The model of a config's type.

  Args:
    config: shape.
    dtype: compute type; parameters stay as they are given.
    remat: recompute each layer's activations in the backward pass.
  """
  return MODELS[type(config)](config, dtype=dtype, remat=remat)
