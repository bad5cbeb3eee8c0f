"""A tiny random model whose words hold whole tool calls, so that it calls.

Its template has Qwen's shape: calls in `<tool_call>`, results in a user's turn.
"""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
import transformers

from varl_jax.models.llama import Llama, LlamaConfig
from varl_jax.models.tokenizer import Tokenizer
from varl_jax.types import ToolSpec

LOOKUP = ToolSpec(
  name="lookup", description="finds", arguments={"of": "what to find"}
)
TEMPLATE = """\
{%- if tools %}<|start|> system write <tool_call> {{ tools | length }} <|end|>\
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}
{%- if loop.previtem.role != "tool" %} <|start|> user{% endif %} \
<tool_response> {{ message.content }} </tool_response>\
{%- if loop.last or loop.nextitem.role != "tool" %} <|end|>{% endif %}
{%- else %} <|start|> {{ message.role }} {{ message.content }} <|end|>\
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %} <|start|> assistant{% endif %}"""


def call(name, **arguments):
  """A call as one word."""
  body = json.dumps(
    {"name": name, "arguments": arguments}, separators=(",", ":")
  )
  return f"<tool_call>{body}</tool_call>"


WORDS = (
  call("lookup", of="fox"),
  call("lookup", of="lamp"),
  call("lookup", of=""),
  call("lookup", at="fox"),
  call("weather", of="fox"),
  '<tool_call>{"name":}</tool_call>',
  "<tool_call>",
  "</think>",
  "fox",
  "lamp",
)
CONTROLS = ("<|start|>", "<|end|>", "<tool_response>", "</tool_response>")
OTHERS = ("<unk>", "system", "user", "assistant", "write", "1", "[...]")


@functools.cache
def tokenizer():
  """Words apart by spaces."""
  names = [*OTHERS, *CONTROLS, *WORDS, *"abcdefghij"]
  rust = tokenizers.Tokenizer(
    tokenizers.models.WordLevel(
      {word: index for index, word in enumerate(names)}, unk_token="<unk>"
    )
  )
  rust.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  rust.add_special_tokens(
    [
      tokenizers.AddedToken(text, normalized=False, special=True)
      for text in CONTROLS
    ]
  )
  backend = transformers.PreTrainedTokenizerFast(
    tokenizer_object=rust,
    eos_token="<|end|>",
    unk_token="<unk>",
    chat_template=TEMPLATE,
    clean_up_tokenization_spaces=False,
  )
  return Tokenizer(backend, vocab_size=len(names))


@functools.cache
def model():
  """The model and its parameters."""
  made = Llama(
    LlamaConfig(
      vocab_size=tokenizer().vocab_size,
      hidden_size=16,
      intermediate_size=24,
      num_layers=2,
      num_heads=4,
      num_kv_heads=2,
      head_dim=4,
      tie_embeddings=True,
      max_position=256,
    )
  )
  shapes = jax.eval_shape(
    made.init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32)
  )
  rng = np.random.default_rng(1)
  params = jax.tree.map(
    lambda leaf: jnp.asarray(
      rng.normal(leaf.ndim == 1, 0.2, leaf.shape), jnp.float32
    ),
    shapes,
  )
  return made, params
