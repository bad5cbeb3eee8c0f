"""What an answer is, and who gives it."""

import asyncio

import pytest

from varl_jax.benchmarks import BENCHMARKS, BenchmarkError, answering
from varl_jax.benchmarks.protocol import BenchmarkTask, criterion
from varl_jax.llm.chat import ChatReply, ChatRequest
from varl_jax.llm.journal import Journal, JournaledChat
from varl_jax.types import Message

TASK = BenchmarkTask(
  task_id="t",
  prompt=(Message(role="user", content="Question?"),),
  criteria=(criterion("Secret label C.", 1),),
  images=("data:image/png;base64,AAAA",),
)


@pytest.mark.parametrize(
  ("text", "finish", "answer"),
  [
    ("An answer.", "stop", "An answer."),
    ("<think>r</think>An answer.", "stop", "An answer."),
    ("r</think>An answer.", "stop", "An answer."),
    ("<think>for ever", "length", None),
    ("Cut ans", "length", "Cut ans"),
    ("", "stop", None),
    ("<think>r</think>", "stop", None),
    ("I cannot.", "refusal", None),
  ],
)
def test_what_is_graded_of_a_reply(text, finish, answer):
  reply = ChatReply(text=text, finish=finish, model="m")
  assert answering.answer_of(reply) == answer


class Recorder:
  """Keeps requests."""

  name = "recorder"

  def __init__(self):
    self.requests: list[ChatRequest] = []

  async def complete(self, request):
    self.requests.append(request)
    return ChatReply(text="Said.", finish="stop", model="m-2", reply_tokens=3)


def ask(**decoding):
  chat = Recorder()
  made = answering.find_method("none")(chat, answering.Decoding(**decoding))
  answer = asyncio.run(made.answer(TASK, sample=1))
  return answer, chat.requests[0], made.describe()


def test_a_plain_answer_is_asked_for_and_described():
  answer, request, told = ask(temperature=0.0, seed=3, system="Be exact.")
  assert answer.answer == "Said."
  assert (answer.task_id, answer.sample, answer.model) == ("t", 1, "m-2")
  assert answer.reply_tokens == 3
  assert [m.role for m in request.messages] == ["system", "user"]
  assert request.temperature == 0.0
  assert request.operation == "answer/t/1"
  assert request.images == ()
  assert not any("Secret" in m.content for m in request.messages)
  assert told["method"] == "none"


def test_no_system_message_and_images_on_request():
  _, request, _ = ask(images=True)
  assert [m.role for m in request.messages] == ["user"]
  assert request.images == TASK.images


def test_images_are_part_of_what_the_journal_knows_a_call_by(tmp_path):
  _, with_images, _ = ask(images=True)
  _, without, _ = ask()
  with Journal(tmp_path / "calls.sqlite") as journal:
    chat = JournaledChat(Recorder(), journal)
    assert chat.key(with_images) != chat.key(without)


def test_an_image_file_is_one_by_its_name(tmp_path):
  (tmp_path / "a.jpeg").write_bytes(b"\xff\xd8")
  assert (
    answering.data_url(tmp_path / "a.jpeg") == "data:image/jpeg;base64,/9g="
  )
  with pytest.raises(BenchmarkError, match="no image by its name"):
    answering.data_url(tmp_path / "a.txt")
  with pytest.raises(BenchmarkError, match="cannot be read"):
    answering.data_url(tmp_path / "b.png")


@pytest.mark.parametrize("name", sorted(answering.OVER_PASSAGES))
def test_methods_to_come_are_refused_in_one_sentence(name):
  if name in answering.METHODS:
    pytest.skip(f"{name} is there")
  with pytest.raises(BenchmarkError, match="needs retrieval"):
    answering.find_method(name)


def test_the_benchmarks_of_the_paper():
  """Section 4.1: tasks of each, domains, and the authors' judges."""
  sizes = {
    "healthbench": 5000,
    "healthbench_hard": 1000,
    "healthbench_consensus": 3671,
    "healthbench_professional": 525,
    "prbench_hard": 300 + 250,
    "prbench": 600 + 500,
    "profbench": 40,
    "medxpertqa": 2450 + 2000,
  }
  assert {name: BENCHMARKS[name].size for name in sizes} == sizes
  judge = BENCHMARKS["healthbench_professional"].official_judge
  assert judge is not None
  assert (judge.model, judge.effort, judge.votes) == (
    "gpt-5.4-2026-03-05",
    "low",
    1,
  )
  judge = BENCHMARKS["healthbench_hard"].official_judge
  assert judge is not None
  assert judge.model == "gpt-4.1-2025-04-14"
