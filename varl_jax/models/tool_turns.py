"""What a chat template writes around a tool's result, as token ids.

A conversation is never rendered again once it has begun: sampled ids stay, and
results are put behind them. What goes in between (the end of the model's turn,
the head and the end of the result's, the head of the model's next) is cut out
of a rendering of a made-up conversation, with marks where texts would stand.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from varl_jax.models.errors import ModelError
from varl_jax.models.tokenizer import Tokenizer

# Private-use characters, which no template writes.
_MARKS: Final = ("\ue100", "\ue101", "\ue102")
_RESULT_TAGS: Final = ("<tool_response>", "</tool_response>")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Turn:
  role: str
  content: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolTurns:
  """Token ids around tool results.

  Attributes:
    form: how the template tells the model to write calls.
    before: from the end of the model's text to the first result; begins with
      the end of its turn.
    between: from one result to the next of the same turn.
    after: from the last result to where the model goes on.
    forbidden_ids: ids of tags that only a tool's turn has; a model that could
      sample them could write results of its own.
  """

  form: Literal["json", "tags"]
  before: tuple[int, ...]
  between: tuple[int, ...]
  after: tuple[int, ...]
  forbidden_ids: frozenset[int]

  def wrap(
    self, results: Sequence[Sequence[int]], *, last: int | None
  ) -> list[int]:
    """The ids that follow a turn with calls.

    Args:
      results: ids of each result, at least one.
      last: the id that ended the turn; the end of turn is not written twice.
    """
    before = self.before[1:] if last == self.before[0] else self.before
    ids = list(before)
    for index, result in enumerate(results):
      ids += [*(self.between if index else ()), *result]
    return [*ids, *self.after]

  def overhead(self, results: int) -> int:
    """Most ids around so many results."""
    between = len(self.between) * (results - 1)
    return len(self.before) + between + len(self.after)


def tool_turns(
  tokenizer: Tokenizer,
  tools: Sequence[Mapping[str, Any]],
  *,
  reasoning: bool,
) -> ToolTurns:
  """Reads a tokenizer's template.

  Raises:
    ModelError: the template knows no tools, or writes calls in a format that
      is not read here.
  """
  said, first, second = _MARKS
  turns = [
    _Turn(role="user", content="a"),
    _Turn(role="assistant", content=said),
    _Turn(role="tool", content=first),
    _Turn(role="tool", content=second),
  ]
  text = tokenizer.render_chat(turns, tools=tools, reasoning=reasoning)
  if any(text.count(mark) != 1 for mark in _MARKS):
    raise ModelError(
      "The chat template does not show the results of tools; choose a model"
      " that has been trained with tools, or set tools.names to ''."
    )
  shown, _, rest = text.partition(said)
  before, _, rest = rest.partition(first)
  between, _, after = rest.partition(second)
  if "<tool_call>" not in shown:
    raise ModelError(
      "The chat template does not say how calls are written in <tool_call>"
      " tags, the only way that is read; choose another model, or set"
      " tools.names to ''."
    )
  ids = tokenizer.encode(before)
  if not ids or ids[0] not in tokenizer.stop_ids:
    raise ModelError(
      "The chat template does not end a turn before the result of a tool; set"
      " tools.names to ''."
    )
  tags = {tokenizer.control_ids.get(tag) for tag in _RESULT_TAGS} - {None}
  return ToolTurns(
    form="tags" if "<function=" in shown else "json",
    before=tuple(ids),
    between=tuple(tokenizer.encode(between)),
    after=tuple(tokenizer.encode(after)),
    forbidden_ids=frozenset(tag for tag in tags if tag is not None),
  )
