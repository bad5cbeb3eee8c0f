"""What templates write around results, held against whole renderings."""

import pytest

from tests.models.chat_test import SEARCH, make_backend
from varl_jax.models import tokenizer
from varl_jax.models.errors import ModelError
from varl_jax.models.tool_turns import tool_turns
from varl_jax.types import Message

QWEN = """\
{%- if tools %}<|im_start|>system
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Write a call as <tool_call>%s</tool_call><|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == "tool" %}
{%- if loop.previtem.role != "tool" %}<|im_start|>user{% endif %}
<tool_response>
{{ m.content }}
</tool_response>
{%- if loop.last or loop.nextitem.role != "tool" %}<|im_end|>
{% endif %}
{%- else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% else %}<think>
{% endif %}
{%- endif %}"""
JSON, TAGS = '{"name": ..., "arguments": ...}', "<function=NAME></function>"


def make(template):
  return tokenizer.Tokenizer(make_backend(template), vocab_size=280)


def say(role, content):
  return Message(role=role, content=content)


@pytest.mark.parametrize("reasoning", [True, False])
@pytest.mark.parametrize("results", [("r1",), ("r1", "r2", "r3")])
def test_the_pieces_make_what_the_template_would_render(reasoning, results):
  words = make(QWEN.replace("%s", JSON))
  turns = tool_turns(words, [SEARCH], reasoning=reasoning)
  before = [say("user", "q"), say("assistant", "I call.")]
  whole = words.render_chat(
    [*before, *(say("tool", text) for text in results)],
    tools=[SEARCH],
    reasoning=reasoning,
  )
  shown = whole[whole.index("I call.") + len("I call.") :]
  end = words.control_ids["<|im_end|>"]
  ids = turns.wrap([words.encode_foreign(text) for text in results], last=end)
  assert [end, *ids] == words.encode(shown)
  assert len(ids) <= turns.overhead(len(results)) + sum(map(len, results))


def test_another_stop_keeps_the_end_of_the_turn():
  words = make(QWEN.replace("%s", JSON))
  turns = tool_turns(words, [SEARCH], reasoning=False)
  other = words.control_ids["<|endoftext|>"]
  ids = turns.wrap([[5]], last=other)
  assert ids[0] == words.control_ids["<|im_end|>"]


def test_the_template_tells_the_format():
  for text, form in ((JSON, "json"), (TAGS, "tags")):
    words = make(QWEN.replace("%s", text))
    assert tool_turns(words, [SEARCH], reasoning=False).form == form


@pytest.mark.parametrize(
  ("old", "new", "message"),
  [
    ("{{ m.content }}\n</tool_response>", "</tool_response>", "results"),
    ("<tool_call>%s</tool_call>", "[CALL]", "tool_call"),
  ],
)
def test_other_templates_are_refused(old, new, message):
  words = make(QWEN.replace(old, new).replace("%s", JSON))
  with pytest.raises(ModelError, match=message):
    tool_turns(words, [SEARCH], reasoning=False)
