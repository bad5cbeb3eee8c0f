"""Turns are given in order, and to all."""

import itertools
import threading

from varl_jax.models.turns import Turns


def test_turns_come_in_the_order_of_asking():
  turns, order, threads = Turns(), [], []

  def take(name):
    with turns:
      order.append(name)

  with turns:
    for name in range(6):
      thread = threading.Thread(target=take, args=(name,))
      thread.start()
      threads.append(thread)
      while turns.waiting <= name:
        pass
  for thread in threads:
    thread.join()
  assert order == list(range(6))
  assert turns.waiting == 0


def test_two_that_ask_again_and_again_alternate():
  turns, order = Turns(), []
  both = threading.Barrier(2)

  def work(name):
    both.wait()
    for _ in range(200):
      with turns:
        order.append(name)
        # Whoever holds the turn lets the other ask before it asks again.
        while not turns.waiting and len(order) < 390:
          pass

  threads = [threading.Thread(target=work, args=(n,)) for n in "ab"]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert all(a != b for a, b in itertools.pairwise(order[:380]))


def test_an_error_within_a_turn_gives_it_up():
  turns = Turns()
  try:
    with turns:
      raise ValueError
  except ValueError:
    pass
  with turns:
    assert turns.waiting == 0
