"""Text to token ids and back, for folders and for GGUF files alike.

Answers are never retokenized: `encode_chat` makes the prompt, `decode` reads
what was sampled, and nothing goes from text back to the sampled ids.
"""

import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from varl_jax.models.errors import ModelError

# Token types of GGUF metadata.
_CONTROL, _USER_DEFINED = 3, 4
_GGUF_PRETOKENIZERS = ("smollm", "gpt-2", "default")


class Turn(Protocol):
  """A turn of a conversation, such as `varl_jax.types.Message`."""

  @property
  def role(self) -> str: ...

  @property
  def content(self) -> str: ...


class Tokenizer:
  """A tokenizer with its chat template and the ids sampling needs.

  Attributes:
    vocab_size: rows of the model's output head; ids the tokenizer does not
      know, when the head is padded, are among `forbidden_ids`.
    stop_ids: ids that end an answer.
    pad_id: a valid id to fill unused places with; masks come from lengths,
      never from this id.
    forbidden_ids: ids that must never be sampled: specials that do not stop,
      and head rows without a token.
  """

  def __init__(
    self, backend: Any, *, vocab_size: int, stop_ids: Iterable[int] = ()
  ):
    """Wraps a `transformers.PreTrainedTokenizerFast`.

    Args:
      backend: the tokenizer; its EOS token is a stop id.
      vocab_size: rows of the model's output head.
      stop_ids: more ids that end an answer.

    Raises:
      ModelError: no stop id, or more tokens than head rows.
    """
    self.backend = backend
    self.vocab_size = vocab_size
    eos = backend.eos_token_id
    stop = set(stop_ids) | (set() if eos is None else {eos})
    if not stop:
      raise ModelError("The tokenizer names no end-of-sequence token.")
    known = set(backend.get_vocab().values())
    if max(known | stop) >= vocab_size:
      raise ModelError(
        f"The tokenizer has id {max(known | stop)} but the model's head has"
        f" {vocab_size} rows."
      )
    special = set(backend.all_special_ids) | {
      token
      for token, added in backend.added_tokens_decoder.items()
      if added.special
    }
    unknown = set(range(vocab_size)) - known
    self.stop_ids = frozenset(stop)
    self.forbidden_ids = frozenset((special | unknown) - stop)
    pad = backend.pad_token_id
    self.pad_id = min(stop) if pad is None else pad

  def encode(self, text: str) -> list[int]:
    """Ids of a text alone: no special tokens are added."""
    return self.backend.backend_tokenizer.encode(
      text, add_special_tokens=False
    ).ids

  def encode_chat(self, messages: Sequence[Turn]) -> list[int]:
    """Ids of a conversation by the chat template, opening the answer's turn.

    Raises:
      ModelError: there is no chat template, or it refuses the conversation.
    """
    # jinja2 comes with the chat templates; imported late to stay light.
    import jinja2

    if not self.backend.chat_template:
      raise ModelError("The tokenizer has no chat template.")
    turns = [{"role": m.role, "content": m.content} for m in messages]
    try:
      text = self.backend.apply_chat_template(
        turns, tokenize=False, add_generation_prompt=True
      )
    except jinja2.TemplateError as error:
      raise ModelError(
        f"The chat template refuses the conversation: {error}."
      ) from error
    return self.encode(text)

  def decode(self, ids: Sequence[int]) -> str:
    """Text of token ids, special tokens left out."""
    return self.backend.backend_tokenizer.decode(
      list(ids), skip_special_tokens=True
    )

  def save(self, folder: str | os.PathLike[str]) -> None:
    """Writes tokenizer.json, its settings and the chat template."""
    self.backend.save_pretrained(folder)


def from_folder(
  folder: pathlib.Path, *, vocab_size: int, stop_ids: Iterable[int] = ()
) -> Tokenizer:
  """Reads `tokenizer.json` and `tokenizer_config.json` of a folder.

  Raises:
    ModelError: a file is missing or unreadable.
  """
  for name in ("tokenizer.json", "tokenizer_config.json"):
    if not (folder / name).is_file():
      raise ModelError(f"{folder} has no {name}.")
  fast = _fast_class()
  try:
    # The generic class: it takes tokenizer.json as it is, whereas the classes
    # of single models rebuild parts of it.
    backend = fast.from_pretrained(str(folder), local_files_only=True)
  # The Rust tokenizers raise plain Exception for a bad tokenizer.json.
  except Exception as error:
    raise ModelError(
      f"The tokenizer in {folder} cannot be read: {error}."
    ) from error
  return Tokenizer(backend, vocab_size=vocab_size, stop_ids=stop_ids)


def from_gguf(fields: Mapping[str, Any], *, vocab_size: int) -> Tokenizer:
  """Rebuilds a byte-level BPE tokenizer from GGUF metadata.

  Args:
    fields: the file's metadata, key to plain value.
    vocab_size: rows of the model's output head.

  Raises:
    ModelError: another kind of tokenizer, or metadata that is missing.
  """
  import tokenizers

  kind = fields.get("tokenizer.ggml.model")
  pre = fields.get("tokenizer.ggml.pre", "default")
  if kind != "gpt2" or pre not in _GGUF_PRETOKENIZERS:
    raise ModelError(
      f"The GGUF file's tokenizer ({kind}, {pre}) is not supported; use the"
      " model's Hugging Face folder."
    )
  try:
    tokens = fields["tokenizer.ggml.tokens"]
    types = fields["tokenizer.ggml.token_type"]
    merges = fields["tokenizer.ggml.merges"]
    eos = fields["tokenizer.ggml.eos_token_id"]
  except KeyError as error:
    raise ModelError(f"The GGUF file has no {error.args[0]}.") from error
  rust = tokenizers.Tokenizer(
    tokenizers.models.BPE(
      vocab={token: index for index, token in enumerate(tokens)},
      merges=[_pair(merge) for merge in merges],
    )
  )
  byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  if pre == "smollm":
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    rust.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
      [digits, byte_level]
    )
  else:
    rust.pre_tokenizer = byte_level
  rust.decoder = tokenizers.decoders.ByteLevel()
  rust.add_tokens(
    [
      tokenizers.AddedToken(
        token, special=types[index] == _CONTROL, normalized=False
      )
      for index, token in enumerate(tokens)
      if types[index] in (_CONTROL, _USER_DEFINED)
    ]
  )
  named = {"eos_token": tokens[eos]}
  for name, key in (
    ("bos_token", "bos_token_id"),
    ("pad_token", "padding_token_id"),
    ("unk_token", "unknown_token_id"),
  ):
    index = fields.get(f"tokenizer.ggml.{key}")
    if index is not None:
      named[name] = tokens[index]
  backend = _fast_class()(
    tokenizer_object=rust,
    chat_template=fields.get("tokenizer.chat_template"),
    clean_up_tokenization_spaces=False,
    **named,
  )
  return Tokenizer(backend, vocab_size=vocab_size)


def _pair(merge: str) -> tuple[str, str]:
  left, _, right = merge.partition(" ")
  return left, right


def _fast_class() -> Any:
  # Only tokenizers are used, so the advice that torch is missing is noise.
  os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
  import transformers

  return transformers.PreTrainedTokenizerFast
