"""How tasks and rubrics are written into the blocks of a prompt."""

import re
from collections.abc import Sequence

from varl_jax.types import Criterion, Message, Rubric, Verdict

_SENTENCE_END = re.compile(r"[.!?](?=\s|\Z)|\n")


def conversation_text(prompt: Sequence[Message]) -> str:
  """One `role: content` entry a turn."""
  return "\n".join(f"{turn.role}: {turn.content}" for turn in prompt)


def criterion_line(criterion: Criterion) -> str:
  """`+8 | text`, and ` | check` when a program decides it; always one line."""
  text = " ".join(criterion.text.split())
  check = f" | {criterion.check}" if criterion.check else ""
  return f"{criterion.points:+g} | {text}{check}"


def rubric_text(rubric: Rubric | Sequence[Criterion]) -> str:
  """One line a criterion."""
  criteria = rubric.criteria if isinstance(rubric, Rubric) else rubric
  return "\n".join(criterion_line(criterion) for criterion in criteria)


def verdict_word(verdict: Verdict | None) -> str:
  """`met`, `not met`, `undetermined`, or `not judged` alone."""
  if verdict is None:
    return "not judged"
  if verdict.met is None:
    return "undetermined"
  return "met" if verdict.met else "not met"


def cut_words(text: str, limit: int) -> str:
  """At most `limit` words of `text`, up to the last sentence that fits."""
  words = list(re.finditer(r"\S+", text))
  if len(words) <= limit:
    return text.strip()
  return _whole_sentences(text[: words[limit - 1].end()])


def cut_chars(text: str, limit: int) -> str:
  """At most `limit` characters of `text`, up to the last sentence that fits."""
  text = text.strip()
  return text if len(text) <= limit else _whole_sentences(text[:limit])


def _whole_sentences(text: str) -> str:
  ends = [match.end() for match in _SENTENCE_END.finditer(text)]
  return (text[: ends[-1]] if ends else text).strip()
