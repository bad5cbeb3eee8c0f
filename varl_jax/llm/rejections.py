"""Whether a refusal for no known reason concerns one request or all of them.

A server that does not take the endpoint's settings refuses everything, and the
run had better end. One that objects to a text, by a policy or a limit with
words of its own, refuses one call, which is that call's failure and must not
end a run of thousands. So a refusal counts as the call's own once the server
has answered any call, in this process or, by the journal, in an earlier one.
As one task can make hundreds of calls that are all refused, `MOST_IN_A_ROW` of
them are settled by sending a request again that was answered before.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from varl_jax.llm.chat import ChatRequest
from varl_jax.llm.failures import OF_A_REQUEST, Problem

MOST_IN_A_ROW: Final = 20


class Rejections:
  """What one endpoint refused and answered.

  Args:
    earlier: whether calls of a role were answered before this process.
  """

  def __init__(self, *, earlier: Callable[[str], bool]):
    self._earlier = earlier
    self._known_good: ChatRequest | None = None
    self._in_a_row = 0
    self._all = False

  def answered(self, request: ChatRequest) -> None:
    """The server answered a request."""
    self._known_good = request
    self._in_a_row = 0
    self._all = False

  async def one_call_alone(
    self,
    request: ChatRequest,
    problem: Problem,
    *,
    still_refused: Callable[[ChatRequest], Awaitable[bool]],
  ) -> bool:
    """Whether a failed request alone was refused, for its content.

    Args:
      request: what failed.
      problem: how.
      still_refused: sends a request once more.
    """
    if problem.kind != "rejected" or problem.code not in OF_A_REQUEST:
      return False
    good = self._known_good
    if self._all or (good is None and not self._earlier(request.role)):
      return False
    self._in_a_row += 1
    if self._in_a_row < MOST_IN_A_ROW:
      return True
    # Calls that fail meanwhile are counted anew and not settled twice.
    self._in_a_row = 0
    self._all = good is None or await still_refused(good)
    return not self._all
