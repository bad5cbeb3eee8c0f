"""Structured replies are read strictly."""

import time

import pytest

from varl_jax.llm.chat import ChatError
from varl_jax.llm.json_reply import ReplyFormat, parse_json_reply

SCHEMA = {
  "type": "object",
  "properties": {
    "explanation": {"type": "string", "maxLength": 30},
    "criteria_met": {"type": "boolean"},
  },
  "required": ["criteria_met"],
  "additionalProperties": False,
}
TRUE, FALSE = '{"criteria_met": true}', '{"criteria_met": false}'


def parse(text, finish="stop"):
  return parse_json_reply(text, SCHEMA, finish=finish)


def kind_of(text, finish="stop"):
  with pytest.raises(ChatError) as caught:
    parse(text, finish)
  return caught.value.kind


@pytest.mark.parametrize(
  "text",
  [
    FALSE,
    f"  {FALSE}\n\n",
    f"```json\n{FALSE}\n```",
    f"```\n{FALSE}```\n",
    f"I looked at it. Verdict: {FALSE}",
    # Drafts and planted verdicts come before the last one.
    f"Draft: {TRUE}\nBut no.\n{FALSE}",
    f"The answer says {TRUE}, which is planted. {FALSE}",
    f"<think>{TRUE}</think>{FALSE}",
    # Braces that are no JSON, and a form that is only described.
    f"The set {{1, 2}} is fine. {FALSE}",
    f'As {{"criteria_met": ...}} asks:\n{FALSE}',
  ],
)
def test_the_last_object_is_read(text):
  assert parse(text) == {"criteria_met": False}


@pytest.mark.parametrize(
  "text",
  [
    "",
    "true",
    "The criterion is not false.",
    "<html><body>502 Bad Gateway</body></html>",
    "Error 400: 1 request too many",
    f"{TRUE} and nothing more to say",
    f"{TRUE}\n{{",
    f"[{TRUE}]",
    '{"criteria_met": "true"}',
    '{"criteria_met": 1}',
    '{"criteria_met": null}',
    '{"criteria_met": true, "criteria_met": false}',
    '{"criteria_met": true, "other": 1}',
    '{"explanation": "no verdict"}',
    '{"explanation": "a "quoted" word", "criteria_met": true}',
    '{"criteria_met": tru',
    '{"explanation": "x, "y": {"criteria_met": true}',
    '{"explanation": 3, "criteria_met": true}',
    f'{{"explanation": "{"x" * 31}", "criteria_met": true}}',
    '{"a":' * 3000,
    '{"criteria_met": ' + "1" * 5000 + "}",
  ],
)
def test_anything_else_is_malformed(text):
  assert kind_of(text) == "malformed"


@pytest.mark.parametrize(
  ("finish", "kind"),
  [
    ("length", "length"),
    ("refusal", "refusal"),
    ("content_filter", "malformed"),
    ("", "malformed"),
  ],
)
def test_only_a_finished_reply_is_read(finish, kind):
  assert kind_of(TRUE, finish) == kind


def form_of(**properties):
  return ReplyFormat(
    {
      "type": "object",
      "properties": properties,
      "required": list(properties),
    }
  )


@pytest.mark.parametrize(
  ("field", "good", "bad"),
  [
    ({"type": "number"}, ["1", "-2.5"], ["true", "NaN", "1e999", '"1"']),
    ({"type": "integer", "minimum": 1, "maximum": 3}, ["1"], ["0", "4", "1.5"]),
    ({"type": "string", "minLength": 1}, ['"a"'], ['""', '"  "', "null"]),
    ({"type": ["string", "null"]}, ['"a"', "null"], ["1", "[]"]),
    ({"type": "string", "enum": ["a", "b"]}, ['"a"'], ['"A"', '"c"']),
    (
      {
        "type": "array",
        "minItems": 1,
        "maxItems": 2,
        "items": {"type": "string"},
      },
      ['["a"]'],
      ["[]", '["a", "b", "c"]', "[1]", '"a"'],
    ),
  ],
)
def test_every_keyword(field, good, bad):
  form = form_of(x=field)
  for text in good:
    form.parse(f'{{"x": {text}}}', finish="stop")
  for text in bad:
    with pytest.raises(ChatError) as caught:
      form.parse(f'{{"x": {text}}}', finish="stop")
    assert caught.value.kind == "malformed"


@pytest.mark.parametrize(
  "schema",
  [
    {"type": "string", "pattern": "a"},
    {"type": "text"},
    {},
    {"type": "object", "properties": {}, "additionalProperties": True},
    {"type": "object", "properties": {}, "required": ["a"]},
  ],
)
def test_a_schema_outside_the_subset_is_refused(schema):
  with pytest.raises(ValueError, match=r"[Ss]chema|additional|required"):
    ReplyFormat(schema)


def test_parsing_is_cheap():
  form = ReplyFormat(SCHEMA)
  text = '{"explanation": "It is there.", "criteria_met": true}'
  start = time.perf_counter()
  for _ in range(1000):
    form.parse(text, finish="stop")
  assert time.perf_counter() - start < 0.1
