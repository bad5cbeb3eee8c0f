"""Words, word tables, BM25 over keys, and the fusion of rankings."""

import math
import pathlib

import numpy as np
import pytest

from varl_jax.retrieval.fusion import best, fuse
from varl_jax.retrieval.lexical import K1, TIE_WEIGHT, B, LexicalIndex
from varl_jax.retrieval.lexicon import EMPTY, load_lexicon
from varl_jax.retrieval.passage import RetrievalError
from varl_jax.retrieval.words import STOP_WORDS, document_words, words


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("Kidney STONES", ["kidney", "stone"]),
    ("Ménière's disease", ["menier", "diseas"]),
    ("type II, stage iv", ["type", "2", "stage", "4"]),
    ("see E11.621 and T40.1X1", ["see", "e11.621", "t40.1x1"]),
    ("Crohn’s can't", ["crohn", "cannot"]),
    ("isn't well", ["no:well"]),
    ("without loss of appetite", ["no:loss", "appetit"]),
    ("no fever or chills, cough", ["no:fever", "no:chill", "cough"]),
    ("not from pollen, no", ["from", "pollen"]),
    ("急性 喉痛", ["急", "性", "喉", "痛"]),
    ("Straße ﬁt", ["strass", "fit"]),
    ("hepatitis A, a virus", ["hepat", "lettera", "virus"]),
    ("the of and", []),
    ("", []),
    ("x" * 65, []),
  ],
)
def test_texts_become_stems(text, expected):
  assert words(text) == expected


def test_negated_words_of_documents_are_found_both_ways():
  assert document_words("stone without obstruction") == [
    "stone",
    "obstruct",
    "no:obstruct",
  ]
  texts = ("stone with obstruction", "stone without obstruction", "stone")
  index = LexicalIndex.build([(text,) for text in texts])
  blocked = index.scores("obstruction", EMPTY)
  assert blocked[0] > blocked[1] > blocked[2] == 0
  free = index.scores("no obstruction", EMPTY)
  assert free[1] > free[0] == 0
  assert index.scores("no stone", EMPTY).max() == 0


def test_stop_words_never_reach_the_index():
  assert words(" ".join(STOP_WORDS)) == []


def table(tmp_path, text):
  path = tmp_path / "table.txt"
  path.write_text(text, encoding="utf-8")
  return load_lexicon(str(path))


def test_the_longest_phrase_is_one_concept(tmp_path):
  lexicon = table(
    tmp_path,
    "# words\nignore = of note\nheart = cardiac\n"
    "heart attack, MI = myocardial infarction ; infarct\n",
  )
  assert lexicon.concepts("heart attacks of the heart") == [
    (("heart", "attack"), ("myocardi", "infarct"), ("infarct",)),
    (("heart",), ("cardiac",)),
  ]
  assert lexicon.concepts("attack on the heart, mi") == [
    (("attack", "heart"), ("myocardi", "infarct"), ("infarct",)),
    (("mi",), ("myocardi", "infarct"), ("infarct",)),
  ]
  assert EMPTY.concepts("heart attacks") == [(("heart",),), (("attack",),)]


@pytest.mark.parametrize("line", ["no sign", "= right", "left ="])
def test_a_line_that_is_none_is_named(tmp_path, line):
  with pytest.raises(RetrievalError, match=r"table\.txt:2 is no line"):
    table(tmp_path, f"# words\n{line}\n")


def test_an_unknown_table_names_those_there_are():
  with pytest.raises(RetrievalError, match="choose clinical"):
    load_lexicon("nonsense")


def test_the_clinical_table_is_sound():
  """No phrase is its own term, and nothing maps to nothing."""
  lexicon = load_lexicon("clinical")
  assert len(lexicon.terms) > 1000
  for phrase, terms in lexicon.terms.items():
    assert phrase and all(terms) and phrase not in terms
  assert not set(lexicon.terms) & lexicon.ignored


def by_hand(corpus, query):
  """BM25 as Lucene writes it, from its formula."""
  keys = [words(text) for text in corpus]
  mean = sum(map(len, keys)) / len(keys)
  found = []
  for key in keys:
    score = 0.0
    for word in words(query):
      held = sum(word in k for k in keys)
      idf = math.log(1 + (len(keys) - held + 0.5) / (held + 0.5))
      tf = key.count(word)
      score += idf * tf / (tf + K1 * (1 - B + B * len(key) / mean))
    found.append(score)
  return found


CORPUS = (
  "gout in the toe",
  "gout gout",
  "flu",
  "a toe, a long toe, a swollen toe of a foot",
  "knee",
)


def test_scores_are_bm25_over_the_whole_index():
  index = LexicalIndex.build([(text,) for text in CORPUS])
  found = index.scores("gout toe", EMPTY)
  expected = np.array(by_hand(CORPUS, "gout toe")) * (1 + TIE_WEIGHT)
  assert found == pytest.approx(expected, rel=1e-5)
  assert len(index) == 5 and found[2] == 0


def test_a_passage_counts_by_its_best_key_and_a_concept_by_its_best_term(
  tmp_path,
):
  grouped = LexicalIndex.build([CORPUS[:2], CORPUS[2:4], CORPUS[4:]])
  one = by_hand(CORPUS, "gout toe")
  found = grouped.scores("gout toe", EMPTY)
  first = TIE_WEIGHT * np.array([one[0], one[2], one[4]])
  expected = np.add(first, [max(one[:2]), max(one[2:4]), one[4]])
  assert found == pytest.approx(expected, rel=1e-5)
  lexicon = table(tmp_path, "podagra = gout ; toe\n")
  plain = [by_hand(CORPUS, w) for w in ("gout", "toe")]
  keys = np.maximum(*map(np.array, plain))
  found = grouped.scores("podagra", lexicon)
  first = TIE_WEIGHT * keys[[0, 2, 4]]
  expected = np.add(first, [keys[:2].max(), keys[2:4].max(), keys[4]])
  assert found == pytest.approx(expected, rel=1e-5)


def test_saved_and_loaded_it_is_the_same(tmp_path):
  for number, keys in enumerate([[(t,) for t in CORPUS], [], [("",), ()]]):
    folder = tmp_path / str(number)
    folder.mkdir()
    index = LexicalIndex.build(keys)
    index.save(folder)
    again = LexicalIndex.load(folder)
    assert len(again) == len(keys)
    for query in ("gout toe", "unknown", ""):
      assert (again.scores(query, EMPTY) == index.scores(query, EMPTY)).all()


def test_the_best_are_above_the_bound_and_ties_go_by_place():
  scores = np.array([1.0, 3.0, 0.0, 3.0, 2.0, 3.0], np.float32)
  assert best(scores, 2, above=0.0).tolist() == [1, 3]
  assert best(scores, 9, above=0.0).tolist() == [1, 3, 5, 4, 0]
  assert best(scores, 9, above=3.0).tolist() == []
  assert best(np.zeros(0, np.float32), 3, above=0.0).tolist() == []


def test_ranks_are_fused_by_their_reciprocals():
  found = fuse([["a", "b", "c"], ["c", "a"]], 3, weights=(1, 1))
  assert [name for name, _ in found] == ["a", "c", "b"]
  assert found[0][1] == pytest.approx(1 / 61 + 1 / 62)
  assert fuse([["a"], ["b"]], 1, weights=(1, 1)) == [("a", 1 / 61)]
  assert fuse([["a"], ["b"]], 1, weights=(1, 2)) == [("b", 2 / 61)]
  assert fuse([[], []], 5, weights=(1, 1)) == []


def test_the_package_ships_the_table():
  import varl_jax.retrieval

  folder = pathlib.Path(varl_jax.retrieval.__file__).parent
  assert (folder / "lexicons" / "clinical.txt").is_file()
