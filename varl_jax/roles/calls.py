"""One call of a role: messages in, a reply read strictly, one more try."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from varl_jax.llm.blocks import block
from varl_jax.llm.chat import ChatError, ChatModel, ChatReply, ChatRequest
from varl_jax.llm.final_answer import final_answer
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.llm.seeds import derive_seed
from varl_jax.types import Message

T = TypeVar("T")

# A malformed reply is drawn once more, with a name and a seed of its own.
_ATTEMPTS = ("", "/retry1")


def user_message(blocks: Mapping[str, str | None]) -> Message:
  """A user message of one block an entry; None leaves the block out."""
  parts = [block(k, text) for k, text in blocks.items() if text is not None]
  return Message(role="user", content="\n\n".join(parts))


def optional(text: str) -> str | None:
  """None for an empty text, so that its block is left out."""
  return text or None


def check_finish(reply: ChatReply) -> None:
  """Raises `ChatError` unless the reply is a whole one.

  Raises:
    ChatError: `length` or `refusal` as it ended, `malformed` for any other end.
  """
  if reply.finish == "length":
    raise ChatError("length", "The answer was cut at its token limit.")
  if reply.finish == "refusal":
    raise ChatError("refusal", "The model refused to answer.")
  if reply.finish != "stop":
    raise ChatError("malformed", f"Unknown finish reason {reply.finish!r}.")


async def ask_json(
  chat: ChatModel,
  read: Callable[[dict[str, Any]], T],
  *,
  role: str,
  messages: Sequence[Message],
  form: ReplyFormat,
  op: str,
  seed: int,
) -> T:
  """Asks for a structured reply; a malformed one is asked for once more.

  Args:
    chat: the model.
    read: turns the checked object into the result, or raises `ChatError` of
      kind `malformed` for what a schema cannot say.
    role: name of the role.
    messages: the conversation.
    form: the reply's form.
    op: unique name of the operation.
    seed: the run's seed.

  Raises:
    ChatError: no usable reply; `malformed` after the second one.
  """

  def parse(reply: ChatReply) -> T:
    return read(form.parse(reply.text, finish=reply.finish))

  return await _ask(
    chat, parse, role=role, messages=messages, form=form, op=op, seed=seed
  )


async def ask_text(
  chat: ChatModel,
  *,
  role: str,
  messages: Sequence[Message],
  op: str,
  seed: int,
  max_chars: int | None = None,
) -> str:
  """Asks for plain text and returns it without a reasoning channel.

  Args:
    chat: the model.
    role: name of the role.
    messages: the conversation.
    op: unique name of the operation.
    seed: the run's seed.
    max_chars: an answer with more is malformed; None for no limit.

  Raises:
    ChatError: `length` or `refusal` as the reply ended, `malformed` when there
      is no answer in it twice, or twice one too long.
  """

  def parse(reply: ChatReply) -> str:
    check_finish(reply)
    answer = final_answer(reply.text, finish="stop", reasoning=False)
    if not answer:
      raise ChatError("malformed", "The reply holds no answer.")
    if max_chars is not None and len(answer) > max_chars:
      raise ChatError(
        "malformed",
        f"The answer has {len(answer)} characters, {max_chars} are allowed.",
      )
    return answer

  return await _ask(
    chat, parse, role=role, messages=messages, form=None, op=op, seed=seed
  )


async def _ask(
  chat: ChatModel,
  parse: Callable[[ChatReply], T],
  *,
  role: str,
  messages: Sequence[Message],
  form: ReplyFormat | None,
  op: str,
  seed: int,
) -> T:
  failure = None
  for suffix in _ATTEMPTS:
    operation = op + suffix
    request = ChatRequest(
      role=role,
      messages=tuple(messages),
      operation=operation,
      seed=derive_seed(seed, operation),
      schema=form.schema if form else None,
    )
    try:
      return parse(await chat.complete(request))
    except ChatError as error:
      if error.kind != "malformed":
        raise
      failure = error
  assert failure is not None
  raise failure
