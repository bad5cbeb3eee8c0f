import json

import pytest

from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.llm.strict_schema import (
  has_optional,
  strict_schema,
  without_nulls,
)

SCHEMA = {
  "type": "object",
  "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 9},
    "mood": {"type": "string", "enum": ("calm", "grim")},
    "check": {"type": ["string", "null"], "maxLength": 5},
    "items": {
      "type": "array",
      "maxItems": 3,
      "items": {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
      },
    },
  },
  "required": ["name", "items"],
  "additionalProperties": False,
}


def objects(schema):
  if "properties" in schema:
    yield schema
    for value in schema["properties"].values():
      yield from objects(value)
  if "items" in schema:
    yield from objects(schema["items"])


def test_every_property_is_required_and_optional_ones_may_be_null():
  made = strict_schema(SCHEMA)
  for inner in objects(made):
    assert inner["required"] == list(inner["properties"])
    assert inner["additionalProperties"] is False
  assert made["properties"]["mood"] == {
    "type": ["string", "null"],
    "enum": ["calm", "grim", None],
  }
  assert made["properties"]["name"] == SCHEMA["properties"]["name"]
  assert made["properties"]["check"] == SCHEMA["properties"]["check"]
  inner = made["properties"]["items"]["items"]["properties"]
  assert inner == {"a": {"type": "number"}, "b": {"type": ["integer", "null"]}}
  assert SCHEMA["required"] == ["name", "items"]
  json.dumps(made)


def test_bounds_of_lengths_can_be_left_out():
  text = json.dumps(strict_schema(SCHEMA, lengths=False))
  assert "Length" not in text and "maxItems" in text


def test_a_strict_reply_passes_our_own_form():
  form = ReplyFormat(SCHEMA)
  reply = json.dumps(
    {
      "name": "Öl",
      "mood": None,
      "check": None,
      "items": [{"a": 1, "b": None}, {"a": 2, "b": 3}],
    }
  )
  found = form.parse(without_nulls(reply, SCHEMA), finish="stop")
  assert found == {
    "name": "Öl",
    "check": None,
    "items": [{"a": 1}, {"a": 2, "b": 3}],
  }


@pytest.mark.parametrize(
  "text", ["no JSON", '{"name": null, "name": "x"}', '{"a": ', "[1, null]"]
)
def test_what_our_form_must_judge_is_left_alone(text):
  assert without_nulls(text, SCHEMA).replace(" ", "") == text.replace(" ", "")


def test_null_for_a_required_or_unknown_property_stays():
  text = '{"name": null, "other": null}'
  assert json.loads(without_nulls(text, SCHEMA)) == json.loads(text)


def test_only_schemas_with_optional_properties_need_it():
  assert has_optional(SCHEMA)
  assert has_optional(SCHEMA["properties"]["items"])
  judge = {
    "type": "object",
    "properties": {"met": {"type": "boolean"}},
    "required": ["met"],
  }
  assert not has_optional(judge)
