"""The story world with something to look up: what a sign at the place says.

Every combination of place, thing and trouble has a sign with one word on it,
fixed and without any pattern. A rubric asks for the word, no request tells it,
and there are too many signs to learn by heart, so that calling `lookup` pays.
Off everywhere but in `configs/story.py:lookup`.
"""

import dataclasses
import hashlib
import json
from typing import Any, Final

from varl_jax.llm.scripted_chat import Reading, ScriptedChat
from varl_jax.llm.tool_calls import failed
from varl_jax.rubrics.checks import CheckError, CheckRegistry
from varl_jax.story import criteria, grammar, readers, words, writers
from varl_jax.story.requests import StoryRequest, read_request
from varl_jax.types import ToolCall, ToolResult, ToolSpec

LOOKUP: Final = ToolSpec(
  name="lookup",
  description="Tells what the sign at a place says.",
  arguments={"of": "The place, the thing and what is in trouble."},
)
SIGNS: Final = (
  "oak amber north silver salt ember clover iron willow copper frost juniper"
).split()
RESULT: Final = "the sign says {sign} ."
SENTENCE: Final = "the sign said {sign} ."
_POINTS: Final = 9


def sign_of(place: str, thing: str, trouble: str) -> str:
  """The word on the sign.

  Raises:
    KeyError: it is no place, thing or trouble of the world.
  """
  for name, known in (
    (place, words.PLACES),
    (thing, words.OBJECTS),
    (trouble, words.TROUBLES),
  ):
    if name not in known:
      raise KeyError(name)
  digest = hashlib.sha256(f"{place} {thing} {trouble}".encode()).digest()
  return SIGNS[digest[0] % len(SIGNS)]


def query_of(request: StoryRequest) -> str:
  """What one looks up for a request."""
  return f"{request.place} {request.thing} {request.trouble}"


def sign(answer: str, place: str, thing: str, trouble: str) -> bool:
  """The answer has the word on the sign and no word of another sign."""
  try:
    wanted = sign_of(place, thing, trouble)
  except KeyError as error:
    raise CheckError(f"The story world has no {error.args[0]!r}.") from error
  return set(words.plain(answer).split()) & set(SIGNS) == {wanted}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lookup:
  """The tool."""

  async def run(self, call: ToolCall) -> ToolResult:
    """Tells the word of a sign."""
    try:
      place, thing, trouble = call.arguments["of"].split()
      found = sign_of(place, thing, trouble)
    except (KeyError, ValueError):
      return failed("bad_arguments", "name a place , a thing and a trouble")
    return ToolResult(text=RESULT.format(sign=found))


def generate(reading: Reading) -> str:
  """The generator: one of the positive criteria asks for the sign."""
  made = json.loads(writers.generate(reading))
  request = read_request(reading.blocks["REQUEST"])
  items: list[dict[str, Any]] = made["rubric_items"]
  first = next(i for i, item in enumerate(items) if item["points"] > 0)
  items[first] = {
    "criterion_text": "What the sign at the place says is told as it stands.",
    "points": _POINTS,
    "check": f"sign({', '.join(query_of(request).split())})",
  }
  return json.dumps(made)


def answer_honestly(reading: Reading) -> str:
  """The honest answerer, who has read the sign."""
  request = read_request(reading.user)
  told = grammar.write("good", request, reading.rng)
  return f"{told} {SENTENCE.format(sign=sign_of(*query_of(request).split()))}"


CHAT: Final = ScriptedChat(
  name="story-lookup-1",
  responders={
    **readers.RESPONDERS,
    "generator": generate,
    "solver": answer_honestly,
  },
)
CHECKS: Final = CheckRegistry(checks={**criteria.REGISTRY, "sign": sign})
VERIFIERS: Final = (
  f"{criteria.VERIFIERS}\nsign(PLACE, THING, TROUBLE): tells the sign's word"
)
TOOLS: Final = {LOOKUP.name: Lookup()}
