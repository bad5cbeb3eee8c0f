"""The story world's lexicon, requests, grammar, criteria and hidden checks."""

import ast
import pathlib
import random

import pytest

from experiments import story_overlap
from varl_jax.rubrics.checks import CheckError
from varl_jax.rubrics.validation import criterion_problems, rubric_problems
from varl_jax.story import criteria, expert, grammar, validation, words, world
from varl_jax.story.requests import (
  StoryRequest,
  draw_request,
  held_out,
  read_request,
)
from varl_jax.types import Criterion, Rubric

REQUEST = StoryRequest(
  first="mia",
  second="tom",
  place="barn",
  thing="rope",
  trouble="bell",
  mood="calm",
  count="six",
)
GOOD = (
  "mia and tom came to the barn . the bell made no sound . mia tried once but"
  " nothing changed . we can do this , said tom . he tied the rope to the"
  " bell . at last the bell rang again . they felt at peace ."
)
LIST = "mia , tom , the barn . a rope and a bell . the bell , stuck . calm ."
THIN = "mia and tom had a rope . the bell was stuck . mia used the rope ."


def test_request_is_read_back_from_its_text():
  rng = random.Random(0)
  for _ in range(50):
    request = draw_request(rng, validation=False, red_team=0.5)
    assert read_request(f"user: {request.text}\n") == request


def test_text_without_a_request_is_refused():
  with pytest.raises(ValueError, match="No story request"):
    read_request("tell me a joke")


def test_training_never_draws_a_validation_combination():
  rng = random.Random(1)
  train = [draw_request(rng, validation=False) for _ in range(300)]
  assert not any(map(held_out, train))
  kept = world.held_out_requests(50, seed=3)
  assert all(map(held_out, kept))
  assert kept == world.held_out_requests(50, seed=3)
  assert kept != world.held_out_requests(50, seed=4)


@pytest.mark.parametrize("kind", ["good", "thin", "ramble"])
def test_every_sentence_of_the_grammar_is_derivable(kind):
  rng = random.Random(2)
  pattern = grammar.sentence_pattern()
  for _ in range(100):
    request = draw_request(rng, validation=False)
    for sentence in words.sentences(grammar.write(kind, request, rng)):
      assert pattern.fullmatch(" ".join(sentence)), sentence


def test_lists_are_not_derivable():
  pattern = grammar.sentence_pattern()
  assert not any(pattern.fullmatch(" ".join(s)) for s in words.sentences(LIST))


def test_policy_vocabulary_covers_requests_and_stories():
  from varl_jax.models.loading import load_model

  _, _, tokenizer = load_model("story")
  rng = random.Random(5)
  for kind in ("good", "thin", "list", "ramble"):
    for held in (False, True):
      request = draw_request(rng, validation=held, red_team=0.5)
      story = grammar.write(kind, request, rng)
      for text in (request.text, story):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
  ("check", "yes", "no"),
  [
    ("mentions(rope)", GOOD, "mia sat ."),
    ("uses(mia, rope)", THIN, LIST),
    ("fetched(rope)", "tom saw a long cord on the wall .", THIN),
    ("put_to_work(rope, bell)", GOOD, THIN),
    ("before(bell, rope)", GOOD, THIN),
    ("speaks()", GOOD, THIN),
    ("acts_apart(mia, tom)", "mia sat . tom sat .", "mia and tom sat ."),
    ("time_steps()", "soon it was . at last it was .", THIN),
    ("repeats()", "mia sat . mia sat .", GOOD),
    ("outsider(mia, tom)", "ben sat .", GOOD),
    ("verbless()", LIST, GOOD),
    ("stuffed()", "mia . mia . mia . mia .", GOOD),
  ],
)
def test_verifiers(check, yes, no):
  assert world.CHECKS.run(check, yes)
  assert not world.CHECKS.run(check, no)


def test_checks_read_ordinary_spelling():
  written = (
    'Mia and Tom came to the barn. "We can do this now," said Tom! He tied'
    " the rope to the bell; at last it rang."
  )
  assert words.plain(GOOD) == GOOD
  assert world.CHECKS.run("put_to_work(rope, bell)", written)
  assert world.CHECKS.run("speaks()", written)
  assert expert.expert_checks(REQUEST, written)["scene_set"]


def test_verifier_refuses_a_thing_it_does_not_know():
  with pytest.raises(CheckError, match="spoon"):
    world.CHECKS.run("put_to_work(spoon, bell)", GOOD)


def test_every_writable_criterion_is_valid_and_recognized():
  for kind, made in criteria.items(REQUEST).items():
    for item in made:
      points = -6 if item.negative else 6
      criterion = Criterion(text=item.text, points=points, check=item.check)
      assert not criterion_problems(criterion), item.text
      assert criteria.kind_of(item.text, REQUEST) == kind
      assert (item.check is None) == (
        criteria.loose_met(item.text, GOOD, strict=False) is not None
      )
      if item.check:
        assert not world.CHECKS.problems(item.check)


def test_strict_reading_credits_no_lone_word():
  text = "The story brings in the rope in some way."
  assert criteria.loose_met(text, "rope .", strict=False)
  assert not criteria.loose_met(text, "rope .", strict=True)
  assert criteria.loose_met(text, GOOD, strict=True)


def test_prompts_name_every_verifier():
  named = [line.split("(")[0] for line in world.VERIFIERS.splitlines()]
  assert named == list(criteria.REGISTRY)


def test_hidden_checks_by_hand():
  met = expert.expert_checks(REQUEST, GOOD)
  assert met == dict.fromkeys(expert.CHECKS, True)
  listed = expert.expert_checks(REQUEST, LIST)
  assert [name for name, ok in listed.items() if ok] == []
  thin = expert.expert_checks(REQUEST, THIN)
  assert [name for name, ok in thin.items() if ok] == ["fluent", "whole"]
  assert expert.expert_score(thin) == pytest.approx(0.2)
  assert not any(expert.expert_checks(REQUEST, "").values())


def test_a_cut_story_is_not_whole():
  cut = GOOD.removesuffix(" at peace .")
  assert not expert.expert_checks(REQUEST, cut)["whole"]


def test_hidden_checks_share_no_predicate_with_library_or_referee():
  library = set(criteria.REGISTRY.values())
  assert not library & set(expert.CHECKS.values())
  assert not set(criteria.REGISTRY) & set(expert.CHECKS)


def test_only_validation_imports_the_expert():
  package = pathlib.Path(str(world.__file__)).parents[1]
  importers = set()
  for path in package.rglob("*.py"):
    for node in ast.walk(ast.parse(path.read_text())):
      names = []
      if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
      elif isinstance(node, ast.ImportFrom):
        names = [f"{node.module}.{alias.name}" for alias in node.names]
      if any(name.startswith("varl_jax.story.expert") for name in names):
        importers.add(path.name)
  assert importers == {"validation.py"}


def test_overlapping_checks_are_those_measured():
  measured = {
    name
    for name, phi in story_overlap.overlapping(4000, seed=0).items()
    if story_overlap.overlaps(phi)
  }
  assert measured == validation.OVERLAPPING


def test_referee_is_good_and_not_perfect():
  drawn = story_overlap.draw(1000, seed=0)
  for pairs in (
    story_overlap.random_pairs(drawn, seed=1),
    story_overlap.policy_pairs(32, seed=1),
  ):
    assert 0.65 <= story_overlap.referee_agreement(pairs) <= 0.91


def test_kinds_are_ranked_as_the_world_intends():
  """Lists win the untuned rubric and lose the hidden one."""
  rng = random.Random(7)
  hidden, untuned = {}, {}
  for kind in ("good", "thin", "list", "ramble"):
    scores, loose = [], []
    for _ in range(150):
      request = draw_request(rng, validation=False)
      text = grammar.write(kind, request, rng)
      scores.append(expert.expert_score(expert.expert_checks(request, text)))
      library = criteria.items(request)
      loose += [
        world.CHECKS.run(item.check, text)
        if item.check
        else criteria.loose_met(item.text, text, strict=False)
        for name in (
          "mention_person",
          "loose_thing",
          "loose_place",
          "loose_trouble",
          "loose_mood",
        )
        for item in library[name]
      ]
    hidden[kind] = sum(scores) / len(scores)
    untuned[kind] = sum(loose) / len(loose)
  assert max(untuned, key=untuned.__getitem__) == "list"
  assert max(hidden, key=hidden.__getitem__) == "good"
  assert min(hidden, key=hidden.__getitem__) == "list"


def test_validator_scores_missing_answers_as_zero():
  validator = validation.make_validator(2, seed=0)
  tasks = validator.tasks
  found = validator.score(tasks, [[None, ""], [None, None]])
  assert found["eval/score"] == 0
  assert found["eval/missing"] == 0.75
  assert not any(task.rubric.criteria for task in tasks)


def test_untuned_rubric_is_valid():
  made = [items[0] for items in criteria.items(REQUEST).values()][:3]
  rubric = Rubric(
    criteria=tuple(Criterion(text=i.text, points=5) for i in made)
  )
  assert not rubric_problems(rubric)
