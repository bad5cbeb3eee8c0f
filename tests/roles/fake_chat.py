"""A model that answers from a list or a function and keeps the requests."""

from collections.abc import Callable, Sequence

from varl_jax.llm.blocks import read_blocks
from varl_jax.llm.chat import ChatError, ChatReply, ChatRequest

Answer = str | ChatReply | ChatError


class FakeChat:
  """Answers with `replies` in turn, or with what a function returns."""

  def __init__(
    self,
    replies: Sequence[Answer] | Callable[[ChatRequest], Answer],
    name: str = "fake",
  ):
    self.name = name
    self.requests: list[ChatRequest] = []
    self._replies = replies if callable(replies) else list(replies)

  async def complete(self, request: ChatRequest) -> ChatReply:
    self.requests.append(request)
    if callable(self._replies):
      answer = self._replies(request)
    else:
      answer = self._replies.pop(0)
    if isinstance(answer, ChatError):
      raise answer
    if isinstance(answer, ChatReply):
      return answer
    return ChatReply(text=answer, finish="stop", model=self.name)

  def blocks(self, call: int = -1) -> dict[str, str]:
    """The blocks of a call's user message."""
    return dict(read_blocks(self.requests[call].messages[-1].content))
