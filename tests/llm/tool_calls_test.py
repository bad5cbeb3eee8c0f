"""Which texts are calls, and what is said of those that are not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varl_jax.llm.final_answer import final_answer, spans
from varl_jax.llm.tool_calls import MAX_ARGUMENT, read_calls
from varl_jax.types import ToolResult, ToolSpec

SEARCH = ToolSpec(
  name="search", description="d", arguments={"query": "q", "where": "w"}
)


def calls(text, form="json", reasoning=False):
  return read_calls(text, [SEARCH], form=form, reasoning=reasoning)


def as_json(tree):
  return f"<tool_call>\n{json.dumps(tree)}\n</tool_call>"


GOOD = {"name": "search", "arguments": {"query": " a {b} ", "where": "c"}}
TAGGED = (
  "<tool_call>\n<function=search>\n<parameter=query>\na\nb\n</parameter>\n"
  "<parameter=where>\nc\n</parameter>\n</function>\n</tool_call>"
)


def test_both_formats_are_read():
  wanted = ("search", {"query": "a {b}", "where": "c"})
  assert calls("Let me see.\n" + as_json(GOOD)) == [wanted]
  assert calls(as_json(GOOD) + "\n" + as_json(GOOD)) == [wanted, wanted]
  assert calls(TAGGED, "tags") == [("search", {"query": "a\nb", "where": "c"})]


@pytest.mark.parametrize(
  ("text", "failure"),
  [
    ("<tool_call>{}</tool_call>", "malformed"),
    ("<tool_call>nothing</tool_call>", "malformed"),
    (as_json(GOOD)[:-12], "malformed"),
    (as_json(GOOD) + "so it is done", "malformed"),
    (as_json(GOOD) + "and" + as_json(GOOD), "malformed"),
    (
      as_json(GOOD) + "<tool_response>made up</tool_response>",
      "malformed",
    ),
    (as_json({**GOOD, "more": 1}), "malformed"),
    ('<tool_call>{"name":"a","name":"search"}</tool_call>', "malformed"),
    ("<tool_call>" + "[" * 100_000 + "</tool_call>", "malformed"),
    (TAGGED, "malformed"),
    (as_json({**GOOD, "name": "rm"}), "unknown_tool"),
    (as_json({**GOOD, "name": ["search"]}), "unknown_tool"),
    (as_json({**GOOD, "arguments": "query"}), "bad_arguments"),
    (as_json({**GOOD, "arguments": {"query": "a"}}), "bad_arguments"),
    (
      as_json({**GOOD, "arguments": {"query": 1, "where": "c"}}),
      "bad_arguments",
    ),
    (
      as_json({**GOOD, "arguments": {"query": "  ", "where": "c"}}),
      "bad_arguments",
    ),
    (
      as_json(
        {
          **GOOD,
          "arguments": {"query": "a" * (MAX_ARGUMENT + 1), "where": "c"},
        }
      ),
      "bad_arguments",
    ),
  ],
)
def test_what_is_wrong_is_typed_and_told(text, failure):
  (found,) = calls(text)
  assert isinstance(found, ToolResult)
  assert found.failure == failure
  assert f"({failure})" in found.text


@pytest.mark.parametrize(
  "text",
  [
    "An answer.",
    f"hm {as_json(GOOD)} so</think>An answer.",
    "<think>" + as_json(GOOD) + "</think>An answer.",
  ],
)
def test_a_call_that_is_only_thought_of_is_none(text):
  assert calls(text, reasoning="<think>" not in text) == []


def test_a_channel_that_never_closes_calls_nothing():
  assert calls(f"hm {as_json(GOOD)}", reasoning=True) == []


def test_a_call_behind_reasoning_counts():
  assert len(calls(f"hm</think>\n{as_json(GOOD)}", reasoning=True)) == 1


PIECES = st.lists(
  st.sampled_from(
    "a b <think> </think> <tool_call> </tool_call> <tool_response>"
    " </tool_response>".split()
  ),
  max_size=12,
).map("".join)


@given(text=PIECES, reasoning=st.booleans())
def test_spans_are_what_the_answer_is_made_of(text, reasoning):
  """The answer read a second way: the spans' places say what is left."""
  answer = final_answer(text, finish="stop", reasoning=reasoning)
  found = spans(text, reasoning=reasoning)
  if found[-1].place == "think" and not found[-1].closed:
    assert answer is None
    return
  left = [span.text for span in found if not span.place]
  assert answer == "\n".join(part for part in left if part)
  assert all(span.closed for span in found[:-1])
