"""Tasks as the generator and the repairer write them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from varl_jax.types import Criterion

# Replies are bounded so that a model stuck in a loop cannot fill its limit;
# what a rubric may hold is decided by `rubrics.validation`.
MAX_ITEMS: Final = 24
MAX_ITEM_CHARS: Final = 1000

ITEM_PROPERTIES: Final[Mapping[str, Any]] = {
  "criterion_text": {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_ITEM_CHARS,
  },
  "points": {"type": "number"},
  "check": {"type": ["string", "null"], "maxLength": 200},
}
ITEMS_SCHEMA: Final[Mapping[str, Any]] = {
  "type": "array",
  "minItems": 1,
  "maxItems": MAX_ITEMS,
  "items": {
    "type": "object",
    "properties": ITEM_PROPERTIES,
    "required": ["criterion_text", "points"],
    "additionalProperties": False,
  },
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratedTask:
  """A question with the criteria proposed for it, not validated yet.

  Attributes:
    question: the user turn.
    use_case: the kind of request; "" from a repairer, which keeps the task's.
    criteria: in the order written.
    specialty: the branch of the field; "" where it has none, and likewise.
    reasons: a repairer's reasons why farming fails and honest work passes.
  """

  question: str
  use_case: str
  criteria: tuple[Criterion, ...]
  specialty: str = ""
  reasons: tuple[str, ...] = ()


def read_criteria(
  items: Sequence[Mapping[str, Any]], *, source: str
) -> tuple[Criterion, ...]:
  """Turns items of `ITEMS_SCHEMA` into criteria of that source."""
  return tuple(
    Criterion(
      text=item["criterion_text"].strip(),
      points=float(item["points"]),
      check=(item.get("check") or "").strip() or None,
      source=source,
    )
    for item in items
  )
