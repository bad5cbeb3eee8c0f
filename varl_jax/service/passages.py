"""Passages of a reference collection, as the writing of tasks asks for them.

What finds them is elsewhere; a run without any (`no_retrieval`) has no source.
"""

import dataclasses
import random
from collections.abc import Sequence
from typing import Protocol


class PassageError(Exception):
  """No passages could be had; the message says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passage:
  """A piece of a page.

  Attributes:
    name: unique in its collection; what is kept of where a task came from.
    text: the passage.
    title: of its page, "" for none.
  """

  name: str
  text: str
  title: str = ""


class PassageSource(Protocol):
  """Where passages come from."""

  async def passages(self, request: str) -> Sequence[Passage]:
    """The passages found for a request, the best first; may be empty.

    Raises:
      PassageError: the collection could not be searched.
    """
    ...

  def seed_passage(self, rng: random.Random) -> Passage:
    """A passage drawn to start requests from.

    Raises:
      PassageError: the collection could not be read.
    """
    ...


def passage_text(passages: Sequence[Passage]) -> str:
  """Passages for a prompt, each under its name and title; "" for none."""
  return "\n\n".join(
    f"[{passage.name}] {passage.title}".rstrip() + f"\n{passage.text.strip()}"
    for passage in passages
  )
