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
    f"<think>not yet {TRUE}\n</think>\n```json\n{FALSE}\n```",
    # Two objects: the last one counts, whatever holds them together.
    f"{TRUE} {FALSE}",
    f"{TRUE}\n{FALSE}",
    f"```json\n{TRUE}\n```\n```json\n{FALSE}\n```",
    f"{{}} {FALSE}",
    "{\n  " + FALSE[1:],
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
    '{"criteria_met": 0}',
    '{"criteria_met": "false"}',
    '{"criteria_met": "not false"}',
    '{"criteria_met": False}',
    '{"criteria_met": NaN}',
    '{"criteria_met": [true]}',
    '{"criteria_met": {"criteria_met": true}}',
    '{"choices": null}',
    f"```json\n{TRUE}\n``` Done.",
    # An unfinished thought holds drafts only.
    f"<think>Perhaps {TRUE}",
    f"  <think>\n{TRUE}",
    # Half a character: JSON, but nothing can store it.
    '{"explanation": "\\ud800", "criteria_met": true}',
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


def test_a_pair_of_escapes_is_one_character():
  text = '{"explanation": "\\ud83d\\ude00", "criteria_met": true}'
  assert parse(text)["explanation"] == "\N{GRINNING FACE}"


@pytest.mark.parametrize(
  "text",
  [
    "x" * 10_000_000,
    "{" * 1_900_000,
    '{"a":' * 390_000,
    '{"a":\n' * 330_000,
    '{"a": [\n' * 240_000,
    '{"a": 1}\n' * 200_000,
    "{x}" * 600_000,
    ('{"a": [' + "1," * 900 + "\n") * 1000,
    '{"a\n' * 400_000,
    "{ " * 900_000,
    '{"criteria_met": ' + "[" * 100_000 + "]" * 100_000 + "}",
  ],
  ids=range(11),
)
def test_huge_and_deep_replies_are_refused_in_linear_time(text):
  start = time.process_time()
  assert kind_of(text) == "malformed"
  # Reading again from every brace would take minutes.
  assert time.process_time() - start < 5


def test_a_long_reply_is_read_to_its_end():
  drafts = f"{TRUE}\n\\frac{{1}}{{2}}\n" * 20_000
  assert parse(drafts + FALSE) == {"criteria_met": False}
