"""Script of the reviser: a text made better by a rubric.

It adds a sentence of a story for each thing that is asked for and not there,
and takes out what is named a mistake. Like the honest answerer it knows the
world's grammar, and nothing of what the hidden expert looks for.
"""

from typing import Final

from varl_jax.llm.scripted_chat import Reading
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.story import criteria, grammar, words, writers
from varl_jax.story.requests import StoryRequest, read_request

_CHECKS: Final = CheckRegistry(checks=criteria.REGISTRY)
# What is added for each kind; the trouble goes before all else.
_ADDED: Final = {
  "mention_person": "{a} and {b} came to the {place} .",
  "loose_thing": "{a} and {b} had a {thing} .",
  "loose_place": "{a} and {b} came to the {place} .",
  "loose_trouble": "they saw that the {noun} was {state} .",
  "loose_mood": "it was {mood} .",
  "uses": "with care {b} {verb} the {thing} {preposition} the {noun} .",
  "fetched": "then {b} found a {thing} in the grass .",
  "put_to_work": "with care {b} {verb} the {thing} {preposition} the {noun} .",
  "before": "the {noun} {broken} .",
  "speaks": "we can do this , said {b} .",
  "acts_apart": "{a} pulled hard but nothing moved .",
  "time_steps": "then {b} ran home . at last the {noun} {fixed} .",
}


def revise(reading: Reading) -> str:
  """Reviser: serves each line of RUBRIC that the answer does not."""
  blocks = reading.blocks
  request = read_request(blocks["TASK"])
  told = [" ".join(piece) for piece in words.sentences(blocks["ANSWER"])]
  for points, text, check in writers.rubric_lines(blocks["RUBRIC"]):
    if (points > 0) != _met(text, check, told):
      kind = criteria.kind_of(text, request)
      told = _served(kind, told, request, reading)
  return " ".join(f"{sentence} ." for sentence in told) or "it was so ."


def _met(text: str, check: str, told: list[str]) -> bool:
  answer = " ".join(f"{sentence} ." for sentence in told)
  if check:
    return _CHECKS.run(check, answer)
  return criteria.loose_met(text, answer, strict=False) is True


def _served(
  kind: str | None, told: list[str], request: StoryRequest, reading: Reading
) -> list[str]:
  if kind in _ADDED:
    made = grammar.fill(_ADDED[kind], request, reading.rng)
    added = [" ".join(piece) for piece in words.sentences(made)]
    return [*added, *told] if kind == "before" else [*told, *added]
  if kind == "repeats":
    return list(dict.fromkeys(told))
  if kind == "verbless":
    return [s for s in told if words.VERBS.intersection(s.split())]
  if kind == "outsider":
    strangers = set(words.PEOPLE) - {request.first, request.second}
    return [s for s in told if not strangers.intersection(s.split())]
  return told
