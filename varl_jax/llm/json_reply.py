"""Reads structured replies: one JSON object of the stated form, or an error.

A `ReplyFormat` is compiled once a role from a small subset of JSON schema
(`type`, `properties`, `required`, `additionalProperties: false`, `items`,
`enum` and the bounds in `_KEYWORDS`); parsing then costs a few microseconds. An
object may hold only its declared properties, stated or not.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from varl_jax.llm.chat import ChatError
from varl_jax.llm.final_answer import CLOSE, OPEN

# A reply is bounded by its token limit; a longer one did not come from a model.
MAX_REPLY_CHARS: Final = 2_000_000
# Broken objects, and characters read in them, after which a reply is given up:
# its inside is read again, which must not take the square of its length.
MAX_BROKEN: Final = 1000
MAX_BROKEN_CHARS: Final = 2_000_000

# Says what is wrong with a value at a path, "" when nothing is.
_Check = Callable[[Any, str], str]

_TYPES: Mapping[str, tuple[type, ...]] = {
  "object": (dict,),
  "array": (list,),
  "string": (str,),
  "number": (int, float),
  "integer": (int,),
  "boolean": (bool,),
  "null": (type(None),),
}
_KEYWORDS = frozenset(
  "type properties required additionalProperties items enum minItems maxItems"
  " minLength maxLength minimum maximum description".split()
)
_FENCE = re.compile(r"\s*(?:```\s*)?\Z")
# Escaped alone they are JSON, but nothing can store or send them.
_SURROGATE = re.compile("[\ud800-\udfff]")
_OBJECT = re.compile(r'\{\s*["}]')


class ReplyFormat:
  """The form a structured reply must have.

  Attributes:
    schema: the JSON schema, as sent along with a request.
  """

  def __init__(self, schema: Mapping[str, Any]):
    """Compiles `schema`; raises ValueError outside the supported subset."""
    self.schema = schema
    self._check = _compile(schema)

  def parse(self, text: str, *, finish: str) -> dict[str, Any]:
    """The object that ends `text`; see `parse_json_reply`."""
    if finish == "length":
      raise ChatError("length", "The reply was cut at its token limit.")
    if finish == "refusal":
      raise ChatError("refusal", "The model refused to reply.")
    if finish != "stop":
      raise ChatError("malformed", f"Unknown finish reason {finish!r}.")
    if len(text) > MAX_REPLY_CHARS:
      raise ChatError("malformed", f"The reply has {len(text)} characters.")
    if text.lstrip().startswith(OPEN) and CLOSE not in text:
      raise ChatError("malformed", "The reply's reasoning never closed.")
    value = _last_object(text)
    if value is None:
      raise ChatError("malformed", f"No JSON object ends: {text[-80:]!r}.")
    problem = self._check(value, "reply")
    if problem:
      raise ChatError("malformed", problem)
    return value


def parse_json_reply(
  text: str, schema: Mapping[str, Any] | ReplyFormat, *, finish: str
) -> dict[str, Any]:
  """Reads the last structured reply of a text.

  Prose and drafts may come first and the object may stand in a code fence, but
  nothing may follow it. Duplicate keys, NaN and infinities are refused.

  Args:
    text: what the model wrote.
    schema: the required form; pass a `ReplyFormat` where calls are many.
    finish: why the reply ended; only `stop` is read.

  Raises:
    ChatError: kind `length` or `refusal` by `finish`, else `malformed`.
  """
  form = schema if isinstance(schema, ReplyFormat) else ReplyFormat(schema)
  return form.parse(text, finish=finish)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  made = dict(pairs)
  if len(made) != len(pairs):
    raise ValueError("duplicate key")
  return made


def _no_constant(name: str) -> Any:
  raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(
  object_pairs_hook=_no_duplicates, parse_constant=_no_constant
)


def _last_object(text: str) -> dict[str, Any] | None:
  """The object that ends `text`, apart from a closing fence; None without."""
  broken = lost = position = 0
  while found := _OBJECT.search(text, position):
    start = found.start()
    try:
      value, position = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
      # The inside of a broken object is no reply: go on at the next line.
      broken, lost = broken + 1, lost + _end(error, text) - start
      position = text.find("\n", start)
      if position < 0 or broken > MAX_BROKEN or lost > MAX_BROKEN_CHARS:
        return None
    else:
      if _FENCE.match(text, position):
        return value
  return None


def _end(error: Exception, text: str) -> int:
  """How far reading got before it failed; unknown counts as all of it."""
  return error.pos if isinstance(error, json.JSONDecodeError) else len(text)


def _compile(schema: Mapping[str, Any]) -> _Check:
  unknown = set(schema) - _KEYWORDS
  if unknown:
    raise ValueError(f"Unsupported schema keyword {sorted(unknown)[0]!r}.")
  names = schema.get("type")
  names = [names] if isinstance(names, str) else names
  if not names or not set(names) <= set(_TYPES):
    raise ValueError(f"Unsupported schema type {names!r}.")
  kinds = tuple(kind for name in names for kind in _TYPES[name])
  inner = _inner_check(schema)

  def check(value: Any, path: str) -> str:
    # bool is an int in Python, but true is no number in JSON.
    if not isinstance(value, kinds) or (
      isinstance(value, bool) and bool not in kinds
    ):
      return f"{path} is not a {' or '.join(names)}."
    return inner(value, path)

  return check


def _inner_check(schema: Mapping[str, Any]) -> _Check:
  names = schema["type"]
  if names == "object":
    return _object_check(schema)
  if names == "array":
    return _array_check(schema)
  if names in ("number", "integer"):
    return _number_check(schema)
  if "string" in names:
    return _string_check(schema)
  return lambda value, path: ""


def _object_check(schema: Mapping[str, Any]) -> _Check:
  fields = {k: _compile(v) for k, v in schema["properties"].items()}
  required = tuple(schema.get("required", ()))
  if schema.get("additionalProperties", False) is not False:
    raise ValueError("additionalProperties is false here.")
  if not set(required) <= set(fields):
    raise ValueError("A required property is not declared.")

  def check(value: dict[str, Any], path: str) -> str:
    for name in required:
      if name not in value:
        return f"{path} lacks {name!r}."
    for name, item in value.items():
      field = fields.get(name)
      if field is None:
        return f"{path} has an unknown key {name!r}."
      problem = field(item, f"{path}.{name}")
      if problem:
        return problem
    return ""

  return check


def _array_check(schema: Mapping[str, Any]) -> _Check:
  item_check = _compile(schema["items"])
  low, high = schema.get("minItems", 0), schema.get("maxItems", math.inf)

  def check(value: list[Any], path: str) -> str:
    if not low <= len(value) <= high:
      return f"{path} has {len(value)} items, not {low} to {high}."
    for index, item in enumerate(value):
      problem = item_check(item, f"{path}[{index}]")
      if problem:
        return problem
    return ""

  return check


def _number_check(schema: Mapping[str, Any]) -> _Check:
  low = schema.get("minimum", -math.inf)
  high = schema.get("maximum", math.inf)

  def check(value: float, path: str) -> str:
    # 1e999 is read as infinity, which no bound would be there to stop.
    if not math.isfinite(value) or not low <= value <= high:
      return f"{path} is {value}, not a number from {low} to {high}."
    return ""

  return check


def _string_check(schema: Mapping[str, Any]) -> _Check:
  low, high = schema.get("minLength", 0), schema.get("maxLength", math.inf)
  choices = schema.get("enum")

  def check(value: str | None, path: str) -> str:
    if value is None:
      return ""
    if not value.isascii() and _SURROGATE.search(value):
      return f"{path} holds half a character."
    if choices is not None and value not in choices:
      return f"{path} is {value[:40]!r}, not one of {', '.join(choices)}."
    if not low <= len(value.strip()) or len(value) > high:
      return f"{path} has {len(value)} characters, not {low} to {high}."
    return ""

  return check
