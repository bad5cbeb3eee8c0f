"""A chat model whose replies are computed from the text of the messages.

It stands where a language model would: behind the same protocol, reading the
same prompts, writing the same JSON. It sees nothing but the messages and the
sampling seed, which a responder gets as a random generator.
"""

import dataclasses
import hashlib
import random
import re
from collections.abc import Callable, Mapping

from varl_jax.llm.blocks import read_blocks
from varl_jax.llm.chat import ChatError, ChatReply, ChatRequest

_ROLE = re.compile(r"\ARole: (\w+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
  """What a responder sees of a request.

  Attributes:
    blocks: text of every block of the user message, by name.
    system: the system message.
    user: the user message with its blocks.
    rng: random generator keyed by the messages and the sampling seed.
  """

  blocks: Mapping[str, str]
  system: str
  user: str
  rng: random.Random


Responder = Callable[[Reading], str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScriptedChat:
  """Answers each role by its responder.

  The role is read off the system message's first line, `Role: NAME`; a system
  message without one is a plain request, answered by `responders["solver"]`.
  """

  name: str
  responders: Mapping[str, Responder]

  async def complete(self, request: ChatRequest) -> ChatReply:
    """Replies; raises `ChatError` for a role that has no responder."""
    system = "".join(m.content for m in request.messages if m.role == "system")
    user = "\n".join(m.content for m in request.messages if m.role == "user")
    match = _ROLE.match(system)
    role = match[1] if match else "solver"
    if role not in self.responders:
      raise ChatError("unavailable", f"No script answers the role {role!r}.")
    digest = hashlib.sha256(f"{request.seed}\0{user}".encode()).digest()
    reading = Reading(
      blocks=dict(read_blocks(user)),
      system=system,
      user=user,
      rng=random.Random(int.from_bytes(digest[:8], "big")),
    )
    return ChatReply(
      text=self.responders[role](reading), finish="stop", model=self.name
    )
