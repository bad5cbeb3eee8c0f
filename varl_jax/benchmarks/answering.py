"""Who answers a benchmark's tasks, and what an answer is.

An `Answerer` is chosen by the method's name in `METHODS`; one that searches for
passages first is another entry there. A model behind an endpoint answers by
`PlainAnswerer`; a local checkpoint, which has no chat model, and saved answers
come from elsewhere.
"""

import dataclasses
import mimetypes
from base64 import b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from varl_jax.benchmarks.protocol import BenchmarkError, BenchmarkTask
from varl_jax.llm.chat import ChatError, ChatModel, ChatReply, ChatRequest
from varl_jax.llm.final_answer import CLOSE, OPEN, final_answer
from varl_jax.llm.seeds import derive_seed
from varl_jax.types import Message

ROLE: Final = "solver"
# Failures that are the model's own: it gave no answer, and asking again would
# not change that. All others leave the task unanswered, to be asked again.
OWN: Final = frozenset({"refusal", "length"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
  """One saved answer.

  Attributes:
    task_id: the task.
    sample: 0, 1, ... of the task.
    answer: the final answer, None when there was none.
    finish: why it ended, `stop`, `length`, `refusal`, or "" when unknown.
    model: who wrote it, as the server calls itself.
    prompt_tokens: tokens read.
    reply_tokens: tokens written, reasoning included.
  """

  task_id: str
  sample: int
  answer: str | None
  finish: str = ""
  model: str = ""
  prompt_tokens: int = 0
  reply_tokens: int = 0


class Answerer(Protocol):
  """A way of answering."""

  async def answer(self, task: BenchmarkTask, *, sample: int) -> Answer:
    """Answers a task.

    Raises:
      ChatError: the call failed and may be made again; a fatal one ends the
        evaluation.
    """
    ...

  def describe(self) -> Mapping[str, Any]:
    """What decides its answers beside the model, for the results."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
  """How answers are drawn.

  Attributes:
    temperature: 0 for greedy decoding.
    seed: of the evaluation.
    system: the system message, "" for none.
    images: whether the model takes images.
  """

  temperature: float = 1.0
  seed: int = 0
  system: str = ""
  images: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainAnswerer:
  """The model alone, under a system message."""

  chat: ChatModel
  decoding: Decoding

  async def answer(self, task: BenchmarkTask, *, sample: int) -> Answer:
    """Answers a task; see `Answerer`."""
    decoding = self.decoding
    operation = f"answer/{task.task_id}/{sample}"
    before = (
      (Message(role="system", content=decoding.system),)
      if decoding.system
      else ()
    )
    request = ChatRequest(
      role=ROLE,
      messages=(*before, *task.prompt),
      operation=operation,
      seed=derive_seed(decoding.seed, operation),
      temperature=decoding.temperature,
      images=task.images if decoding.images else (),
    )
    try:
      reply = await self.chat.complete(request)
    except ChatError as error:
      if error.kind not in OWN:
        raise
      return Answer(
        task_id=task.task_id,
        sample=sample,
        answer=None,
        finish=error.kind,
        model=self.chat.name,
      )
    return Answer(
      task_id=task.task_id,
      sample=sample,
      answer=answer_of(reply),
      finish=reply.finish,
      model=reply.model,
      prompt_tokens=reply.prompt_tokens,
      reply_tokens=reply.reply_tokens,
    )

  def describe(self) -> Mapping[str, Any]:
    """Temperature and seed."""
    return {
      "method": "none",
      "temperature": self.decoding.temperature,
      "seed": self.decoding.seed,
    }


def answer_of(reply: ChatReply) -> str | None:
  """The final answer in a reply, None when there is none."""
  if reply.finish not in ("stop", "length"):
    return None
  reasons = CLOSE in reply.text or reply.text.lstrip().startswith(OPEN)
  text = final_answer(reply.text, finish=reply.finish, reasoning=reasons)
  return text or None


def data_url(path: Path) -> str:
  """An image file as the text that a request carries.

  Raises:
    BenchmarkError: it cannot be read or is no image.
  """
  kind = mimetypes.guess_type(path.name)[0] or ""
  if not kind.startswith("image/"):
    raise BenchmarkError(f"{path} is no image by its name.")
  try:
    content = path.read_bytes()
  except OSError as error:
    raise BenchmarkError(
      f"{path} cannot be read ({error.strerror or error})."
    ) from error
  return f"data:{kind};base64,{b64encode(content).decode()}"


MakeAnswerer = Callable[[ChatModel, Decoding], Answerer]


def _plain(chat: ChatModel, decoding: Decoding) -> Answerer:
  return PlainAnswerer(chat=chat, decoding=decoding)


METHODS: Final[dict[str, MakeAnswerer]] = {"none": _plain}
# The paper's inference-time methods over passages; they get an entry where an
# index is named (`varl_jax.retrieval_answers`).
OVER_PASSAGES: Final = frozenset({"medrag", "rag_fusion", "imedrag"})


def find_method(name: str) -> MakeAnswerer:
  """A method by name.

  Raises:
    BenchmarkError: there is none of that name here.
  """
  if name in METHODS:
    return METHODS[name]
  if name in OVER_PASSAGES:
    raise BenchmarkError(
      f"The method {name!r} needs retrieval: name an index by"
      " --config.retrieval.index, or use --method=none."
    )
  raise BenchmarkError(
    f"There is no method {name!r}; choose {', '.join(METHODS)}."
  )
