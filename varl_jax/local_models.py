"""Frozen weights of this process as models that answer conversations."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from varl_jax.config import LocalConfig
from varl_jax.models.loading import load_model
from varl_jax.models.registry import CausalModel, make_model
from varl_jax.models.tokenizer import Tokenizer
from varl_jax.models.turns import Turns
from varl_jax.sampling.constrained import Grammars
from varl_jax.sampling.local_chat import LocalModel
from varl_jax.sampling.policy_sampler import reading_weights
from varl_jax.sampling.slot_decoder import SlotDecoder


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedModel:
  """A model with weights that nobody trains.

  Attributes:
    model: the architecture.
    params: as they were loaded.
    tokenizer: of the model.
    mesh: devices that the weights lie on, None for a single one.
    dtype: that it computes in.
    axes: on a mesh, the logical axes of the weights.
  """

  model: CausalModel
  params: Any
  tokenizer: Tokenizer
  dtype: str
  mesh: Mesh | None = None
  axes: Any = None


def load_local(path: str, *, dtype: str = "float32") -> LoadedModel:
  """Loads a model onto the default device.

  Raises:
    ModelError: see `load_model`.
  """
  config, params, tokenizer = load_model(path, dtype=jnp.dtype(dtype))
  model = make_model(config, dtype=dtype)
  return LoadedModel(
    model=model, params=params, tokenizer=tokenizer, dtype=dtype
  )


def open_local(
  loaded: LoadedModel,
  *,
  name: str,
  settings: LocalConfig,
  turns: Turns | None = None,
) -> LocalModel:
  """A model that answers; close it when it is done with.

  Args:
    loaded: the weights.
    name: on its replies.
    settings: room for conversations and replies.
    turns: shared with others who use the device.

  Raises:
    ValueError: the room is more than the model's positions.
  """
  tokenizer, vocab = loaded.tokenizer, loaded.model.config.vocab_size

  def grammars() -> Grammars:
    return Grammars(
      tokenizer.backend.backend_tokenizer.to_str(),
      vocab_size=vocab,
      stop_ids=tokenizer.stop_ids,
    )

  decoder = SlotDecoder(
    model=loaded.model,
    params=reading_weights(
      loaded.params,
      axes=loaded.axes or loaded.model.axes(),
      mesh=loaded.mesh,
      dtype=loaded.dtype,
    ),
    mesh=loaded.mesh,
    stop_ids=tokenizer.stop_ids,
    forbidden_ids=tokenizer.forbidden_ids,
    slots=settings.slots,
    width=settings.width,
    max_prompt=settings.max_prompt,
    max_new=settings.max_reply,
  )
  return LocalModel(
    decoder=decoder,
    tokenizer=tokenizer,
    name=name,
    max_prompt=settings.max_prompt,
    max_new=settings.max_reply,
    grammars=grammars,
    turns=turns,
  )
