"""Rubrics in the story's words: all can be written, read, and refused."""

import json
import random

import pytest

from experiments import warm_rubrics
from varl_jax.models.loading import STORY_FOLDER
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.rubrics.validation import rubric_problems
from varl_jax.story import criteria, rubric_words, words
from varl_jax.story.requests import draw_request
from varl_jax.types import Message, Rubric

REQUEST = draw_request(random.Random(0), validation=False)
PROMPT = (Message(role="user", content=REQUEST.text),)


def read(text):
  return rubric_words.LANGUAGE.read(text, PROMPT)


@pytest.mark.parametrize("kind", rubric_words.WORDS)
@pytest.mark.parametrize("second", [False, True])
def test_every_kind_is_read_as_it_is_written(kind, second):
  text = rubric_words.item_text(kind, REQUEST, "seven", second=second)
  [found] = read(text)
  made = criteria.items(REQUEST)[kind]
  assert abs(found.points) == 7
  assert (found.points < 0) == made[0].negative
  both = {"acts_apart", "outsider"}  # two people, in either order
  if kind not in both or not second:
    assert (found.text, found.check) in [(m.text, m.check) for m in made]


def test_there_are_words_for_all_that_can_be_asked():
  assert set(rubric_words.WORDS) == set(criteria.items(REQUEST))


def test_the_policys_vocabulary_has_every_word():
  tree = json.loads((STORY_FOLDER / "tokenizer.json").read_text())
  known = set(tree["model"]["vocab"])
  said = set(rubric_words.POINTS)
  for form in rubric_words.WORDS.values():
    said |= {word for word in form.split() if not word.startswith("{")}
  assert said <= known
  assert {t.state for t in words.TROUBLES.values()} <= known


def test_points_and_signs():
  found = read("one said something . two not over and over .")
  assert [(c.points, c.check) for c in found] == [
    (1, "speaks()"),
    (-2, "stuffed()"),
  ]


def test_an_item_may_name_what_no_request_does():
  [found] = read("six about lil .")
  assert found.check == "mentions(lil)"


@pytest.mark.parametrize(
  ("text", "why"),
  [
    ("", "ends within"),
    ("five said something", "ends within"),
    (".", "ends within"),
    ("said something .", "begins with its points"),
    ("five six said something .", "No item reads"),
    ("five about rope .", "No item reads"),
    ("five the gate is cold .", "No item reads"),
    ("five said something . six said something .", "stands twice"),
    ("mia and tom came to the barn .", "begins with its points"),
    (
      " ".join(f"five about {name} ." for name in list(words.PEOPLE)[:7]),
      "at most 6",
    ),
  ],
)
def test_what_is_no_set_is_refused(text, why):
  with pytest.raises(ValueError, match=why):
    read(text)


def test_what_the_generator_starts_from_is_valid():
  rng, checks = random.Random(3), CheckRegistry(checks=criteria.REGISTRY)
  kinds = set()
  for _ in range(200):
    request = draw_request(rng, validation=False, red_team=0.1)
    prompt = (Message(role="user", content=request.text),)
    found = rubric_words.LANGUAGE.read(
      warm_rubrics.draw_set(request, rng), prompt
    )
    assert rubric_problems(Rubric(criteria=found)) == []
    for item in found:
      assert item.check is None or checks.problems(item.check) == []
      kinds.add(criteria.kind_of(item.text, request))
  assert kinds - {None} == set(rubric_words.WORDS)
