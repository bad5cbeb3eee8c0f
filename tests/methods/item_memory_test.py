"""SibylSense's memory, against numbers worked by hand."""

import pytest

from varl_jax.methods import item_memory as memory
from varl_jax.methods.item_memory import Item


def item(text, reward, category="content", points=8.0, seen=1):
  return Item(
    category=category,
    text=text,
    points=points,
    check=None,
    reward=reward,
    seen=seen,
  )


@pytest.mark.parametrize(
  ("points", "reference", "candidates", "reward"),
  [
    (8, True, [True, False, False, False], 0.75),
    (8, True, [True] * 4, 0.0),
    (8, False, [True, False], -0.5),
    (-6, False, [True, True, False, False], 0.5),
    (-6, True, [False, False], -1.0),
  ],
)
def test_reward_by_hand(points, reference, candidates, reward):
  assert memory.item_reward(points, reference, candidates) == reward


def test_a_reward_needs_candidates():
  with pytest.raises(ValueError, match="candidates"):
    memory.item_reward(8, True, [])


def test_only_what_earns_is_kept():
  kept = memory.remember(
    [], [item("Names the rope.", 0.0), item("Ties a knot.", 0.25)]
  )
  assert [i.text for i in kept] == ["Ties a knot."]


def test_an_item_seen_again_has_the_mean_of_its_rewards():
  old = item("Mia puts the rope to work on the bell.", 0.75)
  again = item("Tom puts the rope to work on the bell.", 0.25)
  kept = memory.remember([old], [again])
  assert [(i.text, i.reward, i.seen) for i in kept] == [(old.text, 0.5, 2)]
  # (0.75 + 0.25 - 0.4) / 3.
  third = item(old.text, -0.4)
  [after] = memory.remember(kept, [third])
  assert (after.reward, after.seen) == (pytest.approx(0.2), 3)
  # (0.6 - 0.8) / 4 is not positive.
  assert memory.remember([after], [item(old.text, -0.8)]) == []


def test_likeness_counts_within_a_category_and_a_sign():
  old = item("Somebody says something aloud.", 0.5)
  others = [
    item(old.text, 0.4, category="form"),
    item(old.text, 0.3, points=-5.0),
  ]
  assert len(memory.remember([old], others)) == 3


def test_the_best_of_a_category_come_first():
  items = [item(str(n), n / 10, "content") for n in (1, 5, 3, 5, 2, 4, 6)]
  items.append(item("other", 0.9, "form"))
  found = memory.top_items(items, "content", memory.TOP)
  assert [i.reward for i in found] == [0.6, 0.5, 0.5, 0.4, 0.3]
  assert found[1] is items[1]
  assert memory.top_items(items, "faults", memory.TOP) == []


def test_a_full_category_forgets_its_worst():
  words = [chr(97 + n // 7) * 4 + chr(97 + n % 7) * 4 for n in range(49)]
  scored = [item(w, 0.01 * (n + 1)) for n, w in enumerate(words)]
  kept = memory.remember([], scored)
  assert [i.text for i in kept] == words[-memory.CAPACITY :]


def test_the_memory_is_text():
  items = [item("Says “so”.", 0.5), item("Two\nlines", 0.25, points=-5.0)]
  assert memory.read_memory(memory.write_memory(items)) == items
  assert memory.read_memory("") == []
  with pytest.raises(ValueError, match="no memory"):
    memory.read_memory("Ask for more.")
