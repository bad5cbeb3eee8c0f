"""Tool calls that a model wrote, read strictly in its own format.

Chat templates teach one of two formats inside `<tool_call>` tags: a JSON object
with `name` and `arguments`, or tags for the function and each parameter. A call
counts only where the template would read it: outside the reasoning channel and
at the end of the turn. Anything else a model writes there is a malformed call,
which is told to it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from varl_jax.llm.final_answer import spans
from varl_jax.types import ToolFailure, ToolResult, ToolSpec

CALL: Final = "tool_call"
# Longest argument, in characters.
MAX_ARGUMENT: Final = 2000

Format = Literal["json", "tags"]
# A name and arguments, or what is wrong.
Parsed = tuple[str, dict[str, str]] | ToolResult

_FUNCTION = re.compile(r"\s*<function=([^<>\s]+)>(.*)</function>\s*", re.S)
_PARAMETER = re.compile(
  r"\s*<parameter=([^<>\s]+)>\n?(.*?)\n?</parameter>\s*", re.S
)


def read_calls(
  text: str,
  tools: Sequence[ToolSpec],
  *,
  form: Format,
  reasoning: bool,
) -> list[Parsed]:
  """The calls at the end of a turn, each read or with what is wrong with it.

  Args:
    text: what the model wrote in the turn.
    tools: those it may call.
    form: in which calls are written.
    reasoning: whether the turn opens in the reasoning channel.

  Returns:
    One entry a call, in order; [] for a turn that calls nothing. Calls with
    text between or behind them are one malformed call: nobody knows what the
    model meant to do first.
  """
  found = [
    span for span in spans(text, reasoning=reasoning) if span.place != "think"
  ]
  written = [index for index, s in enumerate(found) if s.place != ""]
  if not written:
    return []
  if any(s.place != CALL for s in found if s.place):
    return [_malformed("a result is written by the tool, not by you")]
  if not found[written[-1]].closed:
    return [_malformed("the call never ends")]
  between = found[written[0] :]
  if any(s.text.strip() for s in between if s.place == ""):
    return [_malformed("calls stand alone at the end of the turn")]
  return [_read(found[index].text, tools, form) for index in written]


def failed(failure: ToolFailure, why: str) -> ToolResult:
  """A call without a result, in the words that the model sees."""
  return ToolResult(text=f"No result ({failure}): {why}.", failure=failure)


def _malformed(why: str) -> ToolResult:
  return failed("malformed", why)


def _read(text: str, tools: Sequence[ToolSpec], form: Format) -> Parsed:
  try:
    name, arguments = (_json_call if form == "json" else _tagged_call)(text)
  except (ValueError, RecursionError):
    return _malformed("the call cannot be read")
  return _checked(name, arguments, tools)


def _json_call(text: str) -> tuple[Any, Any]:
  tree = json.loads(text, object_pairs_hook=_once)
  if not isinstance(tree, dict) or set(tree) != {"name", "arguments"}:
    raise ValueError("no object of name and arguments")
  return tree["name"], tree["arguments"]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  if len({name for name, _ in pairs}) < len(pairs):
    raise ValueError("a name stands twice")
  return dict(pairs)


def _tagged_call(text: str) -> tuple[Any, Any]:
  match = _FUNCTION.fullmatch(text)
  if match is None:
    raise ValueError("no function")
  name, rest = match.groups()
  found, position = [], 0
  while piece := _PARAMETER.match(rest, position):
    found.append((piece[1], piece[2]))
    position = piece.end()
  if rest[position:].strip():
    raise ValueError("text beside the parameters")
  return name, _once(found)


def _checked(name: Any, arguments: Any, tools: Sequence[ToolSpec]) -> Parsed:
  spec = next((tool for tool in tools if tool.name == name), None)
  if spec is None:
    known = ", ".join(tool.name for tool in tools)
    return failed("unknown_tool", f"there is no such tool; there are: {known}")
  wanted = ", ".join(spec.arguments)
  if not isinstance(arguments, Mapping) or set(arguments) != set(
    spec.arguments
  ):
    return failed("bad_arguments", f"{spec.name} takes {wanted} and no other")
  for key, value in arguments.items():
    if not isinstance(value, str) or not value.strip():
      return failed("bad_arguments", f"{key} is a text that is not empty")
    if len(value) > MAX_ARGUMENT:
      return failed(
        "bad_arguments", f"{key} has at most {MAX_ARGUMENT} characters"
      )
  return spec.name, {key: value.strip() for key, value in arguments.items()}
