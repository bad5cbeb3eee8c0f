"""Schemas in the narrower form that strict servers ask for.

Strict decoding wants every declared property required. An optional property is
sent as a required one that may be null, and such a null is taken out of the
reply again, so that our own `ReplyFormat` judges the same object with every
server.
"""

import json
from collections.abc import Mapping
from typing import Any

# Bounds of strings that some strict servers do not know.
_LENGTHS = ("minLength", "maxLength")


def strict_schema(
  schema: Mapping[str, Any], *, lengths: bool = True
) -> dict[str, Any]:
  """The strict form of a schema.

  Args:
    schema: of the subset that `json_reply` knows.
    lengths: whether bounds of string lengths stay.
  """
  made = {
    key: value
    for key, value in schema.items()
    if lengths or key not in _LENGTHS
  }
  if "enum" in made:
    made["enum"] = list(made["enum"])
  if "items" in made:
    made["items"] = strict_schema(made["items"], lengths=lengths)
  if "properties" in made:
    required = made.get("required", ())
    made["properties"] = {
      name: strict_schema(value, lengths=lengths)
      if name in required
      else _nullable(strict_schema(value, lengths=lengths))
      for name, value in made["properties"].items()
    }
    made["required"] = list(made["properties"])
    made["additionalProperties"] = False
  return made


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
  kinds = schema["type"]
  kinds = [kinds] if isinstance(kinds, str) else list(kinds)
  if "null" in kinds:
    return schema
  made = {**schema, "type": [*kinds, "null"]}
  if "enum" in made:
    made["enum"] = [*made["enum"], None]
  return made


def has_optional(schema: Mapping[str, Any]) -> bool:
  """Whether `strict_schema` adds a null that the schema itself refuses."""
  properties = schema.get("properties", {})
  required = schema.get("required", ())
  return any(
    (name not in required and not _takes_null(value)) or has_optional(value)
    for name, value in properties.items()
  ) or ("items" in schema and has_optional(schema["items"]))


def without_nulls(text: str, schema: Mapping[str, Any]) -> str:
  """A reply's text with the nulls that stand for left-out properties removed.

  A text that is no JSON, or repeats a key, stays as it is: judging it is not
  done here.
  """
  try:
    value = json.loads(text, object_pairs_hook=_unique)
  except ValueError:
    return text
  return json.dumps(_pruned(value, schema), ensure_ascii=False)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  made = dict(pairs)
  if len(made) != len(pairs):
    raise ValueError("duplicate key")
  return made


def _takes_null(schema: Mapping[str, Any]) -> bool:
  return "null" in schema["type"] and not isinstance(schema["type"], str)


def _pruned(value: Any, schema: Mapping[str, Any]) -> Any:
  if isinstance(value, list) and "items" in schema:
    return [_pruned(item, schema["items"]) for item in value]
  properties = schema.get("properties")
  if not isinstance(value, dict) or properties is None:
    return value
  required = schema.get("required", ())
  return {
    name: _pruned(item, properties.get(name, {}))
    for name, item in value.items()
    if item is not None
    or name in required
    or name not in properties
    or _takes_null(properties[name])
  }
