"""Text to token ids and back, for folders and for GGUF files alike.

Answers are never retokenized: `encode_chat` makes the prompt, `decode` reads
what was sampled, and nothing goes from text back to the sampled ids.
"""

import functools
import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from varl_jax.models.chat_text import Marks, Splitter
from varl_jax.models.errors import ModelError

# What a model itself writes, special or not: the reasoning channel, a call.
WRITTEN = ("<think>", "</think>", "<tool_call>", "</tool_call>")
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
    stop_ids: ids that end an answer, the template's end of turn among them.
    pad_id: a valid id to fill unused places with; masks come from lengths,
      never from this id.
    forbidden_ids: ids that must never be sampled: specials that neither stop
      nor belong to what a model writes, and head rows without a token.
    control_ids: added tokens, by their texts; foreign text never becomes one.
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
    added = backend.added_tokens_decoder
    unknown_token = backend.unk_token_id
    # Runs of spaces may be added tokens; an unknown word steers nothing.
    self.control_ids = {
      token.content: index
      for index, token in added.items()
      if token.content.strip() and index != unknown_token
    }
    self._splitter = Splitter(self.control_ids)
    special = {index for index, token in added.items() if token.special}
    eos, turn = backend.eos_token_id, self._end_of_turn()
    stop = set(stop_ids) | {i for i in (eos, turn) if i is not None}
    if not stop:
      raise ModelError("The tokenizer names no end-of-sequence token.")
    known = set(backend.get_vocab().values())
    if max(known | stop) >= vocab_size:
      raise ModelError(
        f"The tokenizer has id {max(known | stop)} but the model's head has"
        f" {vocab_size} rows."
      )
    written = {self.control_ids.get(text) for text in WRITTEN}
    self._dropped = frozenset(special - written)
    unused = set(range(vocab_size)) - known
    self.stop_ids = frozenset(stop)
    self.forbidden_ids = frozenset(
      ((special | set(backend.all_special_ids) | unused) - written) - stop
    )
    pad = backend.pad_token_id
    self.pad_id = min(stop) if pad is None else pad

  def encode(self, text: str) -> list[int]:
    """Ids of our own text: control tokens that it spells out become ids."""
    return self._ids(self.backend.backend_tokenizer, text)

  def encode_foreign(self, text: str) -> list[int]:
    """Ids of somebody else's text: it holds no control token, whatever it says.

    Raises:
      ModelError: the vocabulary leaves no other way to write the text.
    """
    controls = frozenset(self.control_ids.values())
    encoded = self._plain.encode(text, add_special_tokens=False)
    if not controls & set(encoded.ids):
      return encoded.ids
    # A vocabulary of whole words may hold the control text as a word.
    found = []
    for token, (start, stop) in zip(encoded.ids, encoded.offsets, strict=True):
      if token not in controls:
        found.append(token)
        continue
      for character in text[start:stop]:
        found += self._ids(self._plain, character)
    if controls & set(found):
      raise ModelError(
        "The text cannot be written without control tokens of this tokenizer."
      )
    return found

  def encode_chat(
    self,
    messages: Sequence[Turn],
    *,
    reasoning: bool | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
  ) -> list[int]:
    """Ids of a conversation by the chat template, opening the answer's turn.

    What a content spells out never becomes a control token. Contents hold
    final answers: reasoning tags in them are text like any other.

    Args:
      messages: roles are those the template knows.
      reasoning: whether the answer begins with reasoning; None leaves it to
        the template.
      tools: JSON schemas that the template shows to the model.

    Raises:
      ModelError: there is no chat template, it refuses the conversation, or it
        cannot do what is asked for.
    """
    marks = Marks(self.control_ids, [m.content for m in messages])
    turns = [
      {"role": m.role, "content": marks.hide(m.content)} for m in messages
    ]
    options = {} if reasoning is None else {"enable_thinking": reasoning}
    text = self._render(turns, tools=list(tools) or None, **options)
    if tools and text == self._render(turns, **options):
      raise ModelError(
        "The chat template does not show tools; choose a model that has been"
        " trained with tools, or give none."
      )
    if reasoning is not None:
      self._check_reasoning(text, reasoning)
    return self._encode_marked(text, marks)

  def render_chat(
    self,
    messages: Sequence[Turn],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    reasoning: bool | None = None,
  ) -> str:
    """The text of a conversation by the chat template; contents are trusted.

    Raises:
      ModelError: see `encode_chat`.
    """
    turns = [{"role": m.role, "content": m.content} for m in messages]
    options = {} if reasoning is None else {"enable_thinking": reasoning}
    return self._render(turns, tools=list(tools) or None, **options)

  def decode(self, ids: Sequence[int]) -> str:
    """Text of token ids; of special ones only what a model writes is kept."""
    kept = [token for token in ids if token not in self._dropped]
    return self.backend.backend_tokenizer.decode(
      kept, skip_special_tokens=False
    )

  def save(self, folder: str | os.PathLike[str]) -> None:
    """Writes tokenizer.json, its settings and the chat template."""
    self.backend.save_pretrained(folder)

  @functools.cached_property
  def _plain(self) -> Any:
    """The same vocabulary without control tokens."""
    import tokenizers

    whole = json.loads(self.backend.backend_tokenizer.to_str())
    whole["added_tokens"] = [
      token
      for token in whole["added_tokens"]
      if token["content"] not in self.control_ids
    ]
    whole["post_processor"] = None  # may name tokens that are gone
    return tokenizers.Tokenizer.from_str(json.dumps(whole))

  def _encode_marked(self, text: str, marks: Marks) -> list[int]:
    """Ids of a rendered template whose contents are marked."""
    pieces = self._splitter.split(text)
    wanted = [self.control_ids[piece] for piece, own in pieces if own]
    shown = marks.show(text)
    ids = self.encode(shown)
    controls = frozenset(self.control_ids.values())
    same = self._splitter.split(shown) == [
      (marks.show(piece), own) for piece, own in pieces
    ]
    if same and [token for token in ids if token in controls] == wanted:
      return ids
    found = []
    for place, (piece, own) in enumerate(pieces):
      if own:
        found.append(self.control_ids[piece])
        continue
      before = pieces[place - 1][0] if place else ""
      after = pieces[place + 1][0] if place + 1 < len(pieces) else ""
      if self._takes(before, "rstrip"):
        piece = piece.lstrip()
      if self._takes(after, "lstrip"):
        piece = piece.rstrip()
      found += self.encode_foreign(marks.show(piece))
    return found

  def _takes(self, control: str, side: str) -> bool:
    """Whether a control token swallows the spaces on a side of it."""
    index = self.control_ids.get(control)
    added = self.backend.added_tokens_decoder
    return index is not None and getattr(added[index], side)

  def _check_reasoning(self, text: str, reasoning: bool) -> None:
    opens = text.rstrip().endswith(WRITTEN[0])
    if opens and not reasoning:
      raise ModelError(
        "The chat template opens the reasoning channel whatever is asked; set"
        " model.reasoning to True."
      )
    if reasoning and WRITTEN[1] not in str(self.backend.chat_template):
      raise ModelError(
        "The chat template knows no reasoning channel; set model.reasoning to"
        " False."
      )

  def _render(self, turns: list[dict[str, str]], **options: Any) -> str:
    # jinja2 comes with the chat templates; imported late to stay light.
    import jinja2

    if not self.backend.chat_template:
      raise ModelError(
        "The tokenizer has no chat template; use the files of an instruct"
        " model."
      )
    options = {"add_generation_prompt": True} | options
    try:
      return self.backend.apply_chat_template(turns, tokenize=False, **options)
    except jinja2.TemplateError as error:
      raise ModelError(
        f"The chat template refuses the conversation: {error}."
      ) from error

  def _end_of_turn(self) -> int | None:
    """The special token that the template writes after an answer, if any."""
    if not self.backend.chat_template:
      return None
    mark = "\ue000"
    turns = [
      {"role": "user", "content": "a"},
      {"role": "assistant", "content": mark},
    ]
    try:
      text = self._render(turns, add_generation_prompt=False)
    except ModelError:
      return None  # a template of another kind of conversation
    after = text.rpartition(mark)[2].lstrip() if mark in text else ""
    first = self._splitter.split(after)[:1]
    if not first or not first[0][1]:
      return None
    index = self.control_ids[first[0][0]]
    return index if self.backend.added_tokens_decoder[index].special else None

  def _ids(self, rust: Any, text: str) -> list[int]:
    return rust.encode(text, add_special_tokens=False).ids


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
