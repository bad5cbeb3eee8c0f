"""The journal: a finished call is paid for once, whatever happens."""

import asyncio
import dataclasses
import sqlite3
import subprocess
import sys
import textwrap

import pytest

from varl_jax.llm.chat import ChatError, ChatReply, ChatRequest
from varl_jax.llm.journal import Journal, JournaledChat, JournalError
from varl_jax.types import Message

SCHEMA = {
  "type": "object",
  "properties": {"met": {"type": "boolean"}},
  "required": ["met"],
}
REQUEST = ChatRequest(
  role="judge",
  messages=(Message(role="user", content="Is it {met}?"),),
  operation="grade/1/vote0",
  seed=3,
  schema=SCHEMA,
)


class Model:
  """Counts its calls; waits where it is told to, fails where it is told to."""

  def __init__(self, failure=None):
    self.name = "m"
    self.failure = failure
    self.calls = []
    self.gate = None

  async def complete(self, request):
    self.calls.append(request)
    if self.gate is not None:
      await self.gate.wait()
    if self.failure is not None:
      raise self.failure
    return ChatReply(
      text=f"reply {len(self.calls)} \udc80",
      finish="stop",
      model="m-1",
      prompt_tokens=4,
      reply_tokens=2,
      mode="json_schema",
      cost=0.5,
    )


class SamplingModel(Model):
  """Answers samples together, some of them badly."""

  def __init__(self, bad=()):
    super().__init__()
    self.bad = bad
    self.together = []

  async def complete_samples(self, requests):
    self.together.append([request.operation for request in requests])
    return [
      ChatError("timeout", "late")
      if request.operation in self.bad
      else await self.complete(request)
      for request in requests
    ]


@pytest.fixture
def path(tmp_path):
  return tmp_path / "calls.sqlite"


def ask(model, path, *requests, settings=None):
  async def run():
    chat = JournaledChat(model, journal, settings=settings)
    return [await chat.complete(request) for request in requests]

  with Journal(path) as journal:
    return asyncio.run(run())


def test_a_restart_is_answered_from_it(path):
  model = Model()
  (first,) = ask(model, path, REQUEST)
  again = ask(model, path, REQUEST, REQUEST)
  assert len(model.calls) == 1
  expected = dataclasses.replace(first, text="reply 1 ?")
  assert again == [expected, expected]


CHANGES = [
  {"role": "patcher"},
  {"operation": "grade/1/vote1"},
  {"operation": "grade/1/vote0/retry1"},
  {"seed": 4},
  {"temperature": 0.5},
  {"max_tokens": 7},
  {"schema": None},
  {"schema": {**SCHEMA, "required": []}},
  {"messages": (Message(role="system", content="Is it {met}?"),)},
  {"messages": (Message(role="user", content="Is it {met}!"),)},
  {"messages": (*REQUEST.messages, Message(role="user", content=""))},
  {"images": ("data:image/png;base64,AA==",)},
]


def test_everything_that_decides_a_reply_is_in_the_key(path):
  model = Model()
  others = [dataclasses.replace(REQUEST, **change) for change in CHANGES]
  ask(model, path, REQUEST, *others)
  assert len(model.calls) == len(CHANGES) + 1
  changed = {f.name for f in dataclasses.fields(ChatRequest)}
  assert changed == {name for change in CHANGES for name in change}
  for settings in ({"effort": "low"}, {"effort": "high"}):
    ask(model, path, REQUEST, settings=settings)
  model.name = "other"
  ask(model, path, REQUEST)
  assert len(model.calls) == len(CHANGES) + 4


def test_parts_of_a_conversation_cannot_be_moved_between_turns(path):
  model = Model()
  first = (
    Message(role="user", content="ab"),
    Message(role="user", content="c"),
  )
  other = (
    Message(role="user", content="a"),
    Message(role="user", content="bc"),
  )
  ask(
    model,
    path,
    *(dataclasses.replace(REQUEST, messages=turns) for turns in (first, other)),
  )
  assert len(model.calls) == 2


def test_a_schema_at_the_address_of_an_earlier_one_is_another(path):
  model = Model()

  def fresh(count):
    schema = {**SCHEMA, "maxLength": count}
    return dataclasses.replace(REQUEST, schema=schema)

  with Journal(path) as journal:
    chat = JournaledChat(model, journal)
    keys = {chat.key(fresh(count)) for count in range(2000)}
  assert len(keys) == 2000


def test_failed_calls_are_asked_again(path):
  model = Model(ChatError("timeout", "late"))
  for _ in range(2):
    with pytest.raises(ChatError, match="late"):
      ask(model, path, REQUEST)
  model.failure = None
  ask(model, path, REQUEST, REQUEST)
  assert len(model.calls) == 3


def shared(path, model, act):
  async def run():
    model.gate = asyncio.Event()
    chat = JournaledChat(model, journal)
    calls = [asyncio.create_task(chat.complete(REQUEST)) for _ in range(5)]
    await asyncio.sleep(0)
    await act(calls, model)
    return await asyncio.gather(*calls, return_exceptions=True)

  with Journal(path) as journal:
    return asyncio.run(run())


def test_calls_at_once_that_are_the_same_share_a_request(path):
  async def act(calls, model):
    model.gate.set()

  model = Model()
  replies = shared(path, model, act)
  assert len(model.calls) == 1
  assert replies == [replies[0]] * 5


def test_they_share_its_failure_too(path):
  async def act(calls, model):
    model.gate.set()

  model = Model(ChatError("timeout", "late"))
  errors = shared(path, model, act)
  assert len(model.calls) == 1
  assert all(isinstance(error, ChatError) for error in errors)


def test_when_the_one_that_asks_is_cancelled_the_next_one_asks(path):
  async def act(calls, model):
    calls[0].cancel()
    calls[2].cancel()
    await asyncio.sleep(0.01)
    model.gate.set()

  model = Model()
  replies = shared(path, model, act)
  assert len(model.calls) == 2
  cancelled = [isinstance(r, asyncio.CancelledError) for r in replies]
  assert cancelled == [True, False, True, False, False]
  assert len({r.text for r in replies if isinstance(r, ChatReply)}) == 1


SAMPLES = [
  dataclasses.replace(REQUEST, operation=f"grade/1/vote{i}", seed=i)
  for i in range(3)
]


def ask_samples(model, path, requests=SAMPLES):
  with Journal(path) as journal:
    chat = JournaledChat(model, journal)
    return asyncio.run(chat.complete_samples(requests))


def test_samples_lacking_in_it_are_asked_for_together(path):
  model = SamplingModel(bad=["grade/1/vote1"])
  first = ask_samples(model, path)
  assert [getattr(reply, "kind", "reply") for reply in first] == [
    "reply",
    "timeout",
    "reply",
  ]
  model.bad = ()
  second = ask_samples(model, path)
  assert model.together == [
    ["grade/1/vote0", "grade/1/vote1", "grade/1/vote2"],
    ["grade/1/vote1"],
  ]
  assert second[0].text == first[0].text[:-1] + "?"
  assert ask_samples(model, path) == [
    second[0],
    dataclasses.replace(second[1], text=second[1].text[:-1] + "?"),
    second[2],
  ]
  assert len(model.together) == 2


def test_samples_of_a_model_that_draws_one_at_a_time(path):
  model = Model()
  assert len(ask_samples(model, path)) == 3
  ask_samples(model, path)
  assert len(model.calls) == 3


def test_a_sample_of_many_is_not_a_call_of_its_own(path):
  model = Model()
  ask_samples(model, path)
  ask(model, path, SAMPLES[0])
  assert len(model.calls) == 4


def test_replies_that_arrive_together_share_a_sync(path):
  async def run():
    chat = JournaledChat(Model(), journal)
    calls = (
      chat.complete(dataclasses.replace(REQUEST, operation=f"op{index}"))
      for index in range(500)
    )
    await asyncio.gather(*calls)

  batches = []
  with Journal(path) as journal:
    write = journal._write
    journal._write = lambda rows: batches.append(len(rows)) or write(rows)
    asyncio.run(run())
  assert sum(batches) == 500
  assert len(batches) < 100


def test_a_reply_is_handed_on_only_when_it_is_kept(path):
  """A process killed right after a reply finds it again."""
  code = textwrap.dedent(
    f"""
    import asyncio, os
    from tests.llm.journal_test import REQUEST, Model
    from varl_jax.llm.journal import Journal, JournaledChat

    async def run():
      await JournaledChat(Model(), Journal({str(path)!r})).complete(REQUEST)
      os._exit(9)

    asyncio.run(run())
    """
  )
  done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
  assert done.returncode == 9
  model = Model()
  ask(model, path, REQUEST)
  assert model.calls == []


def test_a_full_disk_is_one_clear_sentence_and_no_reply_is_lost_before(path):
  async def run():
    chat = JournaledChat(model, journal)
    await chat.complete(REQUEST)
    pages = journal._writer.execute("PRAGMA page_count").fetchone()[0]
    journal._writer.execute(f"PRAGMA max_page_count={pages}")
    for index in range(1000):
      await chat.complete(
        dataclasses.replace(REQUEST, operation=f"op{index}" * 99)
      )

  model = Model()
  with Journal(path) as journal:
    with pytest.raises(JournalError, match=r"No space left .* resume the run"):
      asyncio.run(run())
  paid = len(model.calls)
  ask(model, path, REQUEST)
  assert len(model.calls) == paid


@pytest.mark.parametrize(
  ("said", "mend"),
  [
    ("disk I/O error", "ulimit -f"),
    ("attempt to write a readonly database", "Let it be written"),
    ("database is locked", "whatever else uses it"),
  ],
)
def test_what_sqlite_says_comes_with_a_mend(path, said, mend):
  with Journal(path) as journal:
    text = str(journal._error(sqlite3.OperationalError(said)))
  assert said in text and mend in text
  assert "the calls before are kept" in text and "resume the run" in text


LIMITED = """
import asyncio, dataclasses, resource, sys
from tests.llm.journal_test import REQUEST, Model
from varl_jax.llm.journal import Journal, JournaledChat, JournalError

async def run():
  with Journal(sys.argv[1]) as journal:
    chat = JournaledChat(Model(), journal)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    for index in range(1000):
      request = dataclasses.replace(REQUEST, operation=f"{index}" * 99)
      await chat.complete(request)

try:
  asyncio.run(run())
except JournalError as error:
  print(error)
"""


def test_a_limit_on_the_size_of_files_is_one_clear_sentence(path):
  done = subprocess.run(
    [sys.executable, "-c", LIMITED, str(path)],
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert "resume the run" in done.stdout, done.stderr
  assert done.stdout.count("\n") == 1
  model = Model()
  ask(model, path, dataclasses.replace(REQUEST, operation="0" * 99))
  assert model.calls == []


def test_it_knows_which_roles_were_answered(path):
  ask(Model(), path, REQUEST)
  with Journal(path) as journal:
    assert journal.has_role("judge") and not journal.has_role("patcher")


@pytest.mark.parametrize("damage", ["text", "table", "version"])
def test_a_file_that_is_no_journal_is_refused(path, damage):
  if damage == "text":
    path.write_text("not a database, by far " * 100)
  else:
    statement = {
      "table": "CREATE TABLE calls (key, other)",
      "version": "PRAGMA user_version=9",
    }[damage]
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.close()
  with pytest.raises(JournalError, match=str(path)) as caught:
    Journal(path)
  assert "\n" not in str(caught.value)


def test_damage_inside_is_told_when_it_is_met(path):
  model = Model()
  many = [
    dataclasses.replace(REQUEST, operation=f"op{index}") for index in range(200)
  ]
  ask(model, path, *many)
  content = bytearray(path.read_bytes())
  for start in range(4096, len(content), 4096):
    content[start : start + 100] = b"\xaa" * 100
  path.write_bytes(content)
  with pytest.raises(JournalError, match="is damaged"):
    ask(model, path, *many)


def test_a_folder_that_is_not_there(tmp_path):
  with pytest.raises(JournalError, match="unable to open"):
    Journal(tmp_path / "missing" / "calls.sqlite")


def test_closing_writes_what_waits_and_ends_the_thread(path):
  journal = Journal(path)
  chat = JournaledChat(Model(), journal)
  asyncio.run(chat.complete(REQUEST))
  journal.close()
  journal.close()
  assert not journal._thread.is_alive()
  with pytest.raises(JournalError):
    asyncio.run(chat.complete(REQUEST))
