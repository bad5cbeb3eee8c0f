"""Replies held to a JSON schema while they are drawn.

A schema becomes a grammar over the tokenizer's own tokens (llguidance, the
extra `constrained`). Before each token it says which may come next, as packed
bits that go to the device and are unpacked there. Objects are written without
spaces and with their keys in the schema's order, and every string, list and
number has an end, so that a weak model cannot ramble within a form.
"""

import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from jaxtyping import UInt32

# Bounds of what a schema leaves open.
LONGEST_STRING: Final = 4000
LONGEST_LIST: Final = 32
LARGEST_NUMBER: Final = 1_000_000
FINEST_FRACTION: Final = 0.001
# Tokens that an entry of a list is given before the list is given more entries.
_ENTRY: Final = 160
_NUMBER: Final = 12
_WORD: Final = 32
# Spaces between tokens of JSON only cost time.
_COMPACT: Final = {
  "whitespace_flexible": False,
  "item_separator": ",",
  "key_separator": ":",
}
# Keywords that hold schemas: by name, in a list, or one.
_NAMED: Final = ("$defs", "definitions", "patternProperties")
_LISTED: Final = ("anyOf", "oneOf", "allOf", "prefixItems")


class ConstraintError(ValueError):
  """A schema that cannot be held to, in one sentence."""


def bounded(schema: Mapping[str, Any], room: int = 1 << 20) -> dict[str, Any]:
  """The schema with an end to each string, list and number.

  What satisfies it satisfies the given one. A lower bound of the schema is kept
  even where it takes more than the room.

  Args:
    schema: any JSON schema.
    room: tokens that a reply may take; strings and lists are shortened so that
      one of plain letters, a token each, fits. Text in other scripts may take
      up to four tokens a letter.
  """
  made: dict[str, Any] = dict(schema)
  if "enum" in made or "const" in made:
    return made
  for key in _NAMED:
    if isinstance(made.get(key), Mapping):
      made[key] = {
        name: _either(inner, room) for name, inner in made[key].items()
      }
  for key in _LISTED:
    if isinstance(made.get(key), Sequence):
      made[key] = [_either(inner, room) for inner in made[key]]
  kinds = made.get("type", ())
  kinds = {kinds} if isinstance(kinds, str) else set(kinds)
  if "string" in kinds and "pattern" not in made and "format" not in made:
    fits = max(made.get("minLength", 1), min(LONGEST_STRING, room - 2))
    made["maxLength"] = min(fits, made.get("maxLength", fits))
  if "array" in kinds and "prefixItems" not in made:
    _bound_list(made, room)
  if "object" in kinds or "properties" in made:
    _bound_object(made, room)
  if kinds & {"integer", "number"}:
    _bound_number(made)
  if "number" in kinds:
    made.setdefault("multipleOf", FINEST_FRACTION)
  return made


def whole_numbers(schema: Any) -> Any:
  """The schema with integers for numbers, as rubrics want points to be."""
  if isinstance(schema, list | tuple):
    return [whole_numbers(inner) for inner in schema]
  if not isinstance(schema, Mapping):
    return schema
  made = {key: whole_numbers(inner) for key, inner in schema.items()}
  if made.get("type") == "number":
    made["type"] = "integer"
  return made


def _bound_list(made: dict[str, Any], room: int) -> None:
  """Few entries with room to say something before many without."""
  least = max(1, made.get("minItems", 0))
  entry = 1 + (_fixed_cost(made.get("items")) or _ENTRY)
  most = made.get("maxItems", max(least, LONGEST_LIST))
  made["maxItems"] = min(most, max(least, (room - 2) // entry))
  each = (room - 2) // max(1, made["maxItems"]) - 1
  made["items"] = _either(made.get("items", {}), each)


def _bound_object(made: dict[str, Any], room: int) -> None:
  """What keys and short values leave goes to the others in equal parts."""
  inner = made.get("properties", {})
  taken = 2 + sum(len(name) + 4 for name in inner)
  costs = {name: _fixed_cost(value) for name, value in inner.items()}
  taken += sum(cost for cost in costs.values() if cost is not None)
  open_ended = sum(cost is None for cost in costs.values())
  each = (room - taken) // max(1, open_ended)
  made["properties"] = {
    name: _either(value, each) for name, value in inner.items()
  }
  if isinstance(made.get("additionalProperties"), Mapping):
    made["additionalProperties"] = _either(made["additionalProperties"], each)


def _bound_number(made: dict[str, Any]) -> None:
  if "exclusiveMinimum" not in made:
    highest = made.get("maximum", made.get("exclusiveMaximum", 0))
    made.setdefault("minimum", min(0, highest) - LARGEST_NUMBER)
  if "exclusiveMaximum" not in made:
    lowest = made.get("minimum", made.get("exclusiveMinimum", 0))
    made.setdefault("maximum", max(0, lowest) + LARGEST_NUMBER)


def _fixed_cost(schema: Any) -> int | None:
  """Most tokens of a value that cannot grow, None of one that can."""
  if not isinstance(schema, Mapping):
    return None
  if "enum" in schema:
    return max(len(json.dumps(value)) for value in schema["enum"])
  if "const" in schema:
    return len(json.dumps(schema["const"]))
  kinds = schema.get("type", "any")
  kinds = {kinds} if isinstance(kinds, str) else set(kinds)
  if kinds <= {"integer", "number", "boolean", "null"}:
    return _NUMBER
  if "string" in kinds and schema.get("maxLength", _ENTRY) < _ENTRY:
    return schema["maxLength"] + 2
  return None


def _either(value: Any, room: int) -> Any:
  """A schema may be true or false."""
  return bounded(value, room) if isinstance(value, Mapping) else value


class Constraint:
  """The state of one reply; tokens go in one by one."""

  def __init__(self, matcher: Any, words: int):
    self._matcher = matcher
    self._words = words

  @property
  def complete(self) -> bool:
    """Whether the reply so far satisfies the schema."""
    return self._matcher.is_accepting()

  @property
  def ended(self) -> bool:
    """Whether nothing but a stop token may follow."""
    return self._matcher.is_stopped()

  def fill(self, out: UInt32[np.ndarray, " W"]) -> None:
    """Writes what may come next: bit t % 32 of word t // 32 for token t.

    Args:
      out: one row of masks, W = ceil(vocabulary / 32) words.
    """
    # The grammar may count one word more than the vocabulary needs.
    bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
    out[:] = bits[: self._words]

  def advance(self, token: int) -> None:
    """Takes the token that was drawn.

    Raises:
      ConstraintError: the grammar does not allow it here.
    """
    if not self._matcher.consume_token(token):
      raise ConstraintError(
        f"Token {token} breaks the schema:"
        f" {self._matcher.get_error() or 'it was masked out'}."
      )


class Grammars:
  """Schemas compiled for one tokenizer; a schema is compiled once."""

  def __init__(
    self, tokenizer_json: str, *, vocab_size: int, stop_ids: Iterable[int]
  ):
    """Reads the tokenizer, for half a second or so.

    Args:
      tokenizer_json: the text of a fast tokenizer's `tokenizer.json`.
      vocab_size: rows of the model's head, V; those beyond the tokenizer's
        tokens are never allowed.
      stop_ids: tokens that end a reply.

    Raises:
      ModuleNotFoundError: the extra `constrained` is not installed.
      ConstraintError: the tokenizer cannot be used.
    """
    self._library = _load_library()
    self.vocab_size = vocab_size
    self.words = -(-vocab_size // _WORD)
    try:
      self._tokens = self._library.LLTokenizer(
        tokenizer_json, n_vocab=vocab_size, eos_token=sorted(set(stop_ids))
      )
    except (ValueError, TypeError) as error:
      raise ConstraintError(
        f"The tokenizer cannot be held to a schema: {error}."
      ) from error
    self._known: dict[str, str] = {}

  def start(
    self, schema: Mapping[str, Any] | None, *, room: int = 1 << 20
  ) -> Constraint:
    """A reply held to a schema, or with None to any JSON object.

    Args:
      schema: of the reply.
      room: most tokens of the reply, see `bounded`.

    Raises:
      ConstraintError: the schema is wrong, or says what no grammar can hold.
    """
    form = {"type": "object"} if schema is None else bounded(schema, room)
    text = json.dumps(form)
    if text not in self._known:
      self._known[text] = self._compile(text)
    matcher = self._library.LLMatcher(self._tokens, self._known[text])
    self._check(matcher)
    return Constraint(matcher, self.words)

  def _compile(self, text: str) -> str:
    try:
      grammar = self._library.LLMatcher.grammar_from_json_schema(
        text, overrides=_COMPACT
      )
    except ValueError as error:
      raise ConstraintError(_said(error)) from error
    self._check(self._library.LLMatcher(self._tokens, grammar))
    return grammar

  @staticmethod
  def _check(matcher: Any) -> None:
    if matcher.is_error():
      raise ConstraintError(_said(matcher.get_error()))


def _said(error: Any) -> str:
  words = " ".join(str(error).split())
  return f"The schema cannot be held to: {words[:300]}."


def _load_library() -> Any:
  try:
    return importlib.import_module("llguidance")
  except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
      "Replies are held to a schema by llguidance; install it with: pip install"
      " 'varl_jax[constrained]'."
    ) from error
