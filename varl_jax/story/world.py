"""The offline domain: everything a run needs instead of a network.

`CHAT` answers every frozen role, `CHECKS` verifies programmatic criteria,
`held_out_requests` draws validation tasks from combinations that training never
sees. The hidden expert is not here; see `story.validation`.
"""

import random
from typing import Final

from varl_jax.llm.scripted_chat import ScriptedChat
from varl_jax.rubrics.checks import CheckRegistry
from varl_jax.story import criteria, readers
from varl_jax.story.requests import StoryRequest, draw_request

CHAT: Final = ScriptedChat(name="story-script-1", responders=readers.RESPONDERS)
CHECKS: Final = CheckRegistry(checks=criteria.REGISTRY)
VERIFIERS: Final = criteria.VERIFIERS
DESCRIPTION: Final = (
  "Requests for very short stories: two people, a place, a thing, something"
  " in trouble, a mood and a number of sentences. A reader wants events that"
  " follow from one another, told in plain full sentences."
)


def held_out_requests(count: int, *, seed: int) -> list[StoryRequest]:
  """Draws validation requests; the same seed gives the same ones."""
  rng = random.Random(f"held-out-{seed}")
  return [draw_request(rng, validation=True) for _ in range(count)]
