"""Every role of the story world through the real prompts and reply formats."""

import asyncio
import dataclasses

import pytest

from varl_jax.config import JudgeConfig
from varl_jax.llm.chat import ChatError, ChatReply, ChatRequest
from varl_jax.llm.scripted_chat import ScriptedChat
from varl_jax.roles.bundle import make_roles
from varl_jax.story import criteria, readers, world, writers
from varl_jax.story.requests import read_request
from varl_jax.types import Criterion, GradedAnswer, Message, Rubric, Task

TEXT = (
  "write a story about mia and tom at the barn with a rope . the bell is"
  " stuck . the mood is calm . use six sentences ."
)
PROMPT = (Message(role="user", content=TEXT),)
ITEMS = criteria.items(read_request(TEXT))
LOOSE = Rubric(
  criteria=(
    Criterion(text=ITEMS["loose_thing"][0].text, points=8),
    Criterion(
      text=ITEMS["uses"][0].text, points=7, check=ITEMS["uses"][0].check
    ),
    Criterion(text=ITEMS["poem"][0].text, points=-6),
  )
)
LIST = "mia , tom , the barn . a rope and a bell . the bell , stuck . calm ."


@dataclasses.dataclass
class Recorder:
  """Passes requests on and keeps them."""

  name: str = world.CHAT.name
  seen: list[ChatRequest] = dataclasses.field(default_factory=list)

  async def complete(self, request: ChatRequest) -> ChatReply:
    self.seen.append(request)
    return await world.CHAT.complete(request)


@pytest.fixture
def chat():
  return Recorder()


@pytest.fixture
def roles(chat):
  return make_roles(chat, "story", JudgeConfig(), world.CHECKS)


def ask(work):
  return asyncio.run(work)


def test_proposer_and_generator_recover_every_field(roles):
  requests = ask(
    roles.proposer.propose(
      description=world.DESCRIPTION, count=6, guidance="", op="p", seed=1
    )
  )
  assert len({r.text for r in requests}) == 6
  for index, request in enumerate(requests):
    made = ask(
      roles.generator.generate(
        request=request,
        positives=3,
        negatives=index % 2,
        solver_mean=0.5,
        guidance="",
        memo="",
        verifiers=world.VERIFIERS,
        op=f"g{index}",
        seed=1,
      )
    )
    assert read_request(made.question) == read_request(request.text)
    signs = [c.points > 0 for c in made.criteria]
    assert signs.count(True) == 3
    assert signs.count(False) == index % 2
    kinds = {
      criteria.kind_of(c.text, read_request(request.text))
      for c in made.criteria
    }
    assert kinds <= {*writers.UNTUNED, *writers.UNTUNED_NEGATIVE}


def test_guidance_and_memo_reach_the_generator(roles):
  request = ask(
    roles.proposer.propose(description="", count=1, guidance="", op="p", seed=2)
  )[0]
  kinds = set()
  for index in range(8):
    made = ask(
      roles.generator.generate(
        request=request,
        positives=3,
        negatives=1,
        solver_mean=None,
        guidance=writers.LESSONS["uses"],
        memo=writers.LESSONS["verbless"],
        op=f"g{index}",
        seed=2,
      )
    )
    kinds |= {
      criteria.kind_of(c.text, read_request(request.text))
      for c in made.criteria
    }
  assert {"uses", "verbless"} <= kinds


def test_honest_answerer_and_referee_are_sent_no_rubric(chat, roles):
  honest = ask(roles.honest.answer(prompt=PROMPT, op="h", seed=1))
  ranking = ask(
    roles.referee.rank(
      prompt=PROMPT, answers=[(0, LIST), (1, honest)], op="r", seed=1
    )
  )
  assert ranking.tiers[0] == (1,)
  sent = "\n".join(m.content for r in chat.seen for m in r.messages)
  assert TEXT in sent
  for criterion in LOOSE.criteria:
    assert criterion.text not in sent
  assert "RUBRIC" not in sent


def test_adversary_outscores_honesty_on_a_loose_rubric(roles):
  rubric = Rubric(
    criteria=tuple(
      Criterion(text=ITEMS[kind][0].text, points=5)
      for kind in ("loose_thing", "loose_place", "loose_mood")
    )
  )
  attack = ask(
    roles.adversary.attack(prompt=PROMPT, rubric=rubric, op="a", seed=1)
  )
  honest = ask(roles.honest.answer(prompt=PROMPT, op="h", seed=1))

  def met(answer):
    verdicts = ask(
      roles.grader.grade(PROMPT, answer, rubric, strict=True, op="g", seed=1)
    )
    assert all(v.judge == world.CHAT.name for v in verdicts)
    assert all(len(v.votes) == 3 for v in verdicts)
    return sum(bool(v.met) for v in verdicts)

  assert met(attack) == 3
  assert met(honest) < 3


def test_adversary_trips_no_verbless_negative(roles):
  fined = Rubric(
    criteria=(
      *LOOSE.criteria,
      Criterion(text=ITEMS["verbless"][0].text, points=-8, check="verbless()"),
    )
  )
  for index in range(6):
    attack = ask(
      roles.adversary.attack(
        prompt=PROMPT, rubric=fined, op=f"a{index}", seed=1
      )
    )
    assert not world.CHECKS.run("verbless()", attack), attack


def test_verdicts_name_check_or_judge(roles):
  verdicts = ask(
    roles.grader.grade(PROMPT, LIST, LOOSE, strict=False, op="g", seed=1)
  )
  assert [v.judge for v in verdicts] == [
    world.CHAT.name,
    "check",
    world.CHAT.name,
  ]
  assert [v.met for v in verdicts] == [True, False, False]


def test_judge_leaves_an_unknown_criterion_undetermined(roles):
  verdict = ask(
    roles.judge.judge(
      prompt=PROMPT,
      answer=LIST,
      criterion=Criterion(text="The moon is full in it.", points=5),
      strict=False,
      op="j",
      seed=1,
    )
  )
  assert verdict.met is None
  assert verdict.failures == ("malformed",) * 3


def test_repairer_swaps_loose_criteria(roles):
  made = ask(
    roles.repairer.rewrite(
      prompt=PROMPT,
      rubric=LOOSE,
      exploit=LIST,
      honest="mia sat .",
      verifiers=world.VERIFIERS,
      op="r",
      seed=3,
    )
  )
  assert read_request(made.question) == read_request(TEXT)
  assert len(made.criteria) >= len(LOOSE.criteria)
  assert {c.text for c in made.criteria} != {c.text for c in LOOSE.criteria}


def test_patcher_proposes_new_criteria_noisily(roles):
  kinds = set()
  for index in range(10):
    made = ask(
      roles.patcher.propose(
        prompt=PROMPT,
        rubric=LOOSE,
        exploit=LIST,
        honest="mia sat .",
        verifiers=world.VERIFIERS,
        op=f"p{index}",
        seed=1,
      )
    )
    present = {c.text for c in LOOSE.criteria}
    assert not present & {c.text for c in made.criteria}
    assert made.label == "keyword_stuffing"
    kinds |= {
      criteria.kind_of(c.text, read_request(TEXT)) for c in made.criteria
    }
  assert len(kinds) > 8


@pytest.mark.parametrize(
  ("answer", "score", "verdict", "defect"),
  [
    (LIST, 0.9, "generator_at_fault", "gameable_restates_task"),
    (
      "mia and tom had a rope . mia used the rope .",
      0.9,
      "generator_at_fault",
      "untestable_vague",
    ),
    (
      "the sun was high today . birds sang a lot .",
      0.1,
      "model_failed_fair_task",
      "none",
    ),
  ],
)
def test_analyst(roles, answer, score, verdict, defect):
  task = Task(task_id="t", prompt=PROMPT, rubric=LOOSE)
  verdicts = ask(
    roles.grader.grade(PROMPT, answer, LOOSE, strict=False, op="g", seed=1)
  )
  found = ask(
    roles.analyst.diagnose(
      task=task,
      answer=GradedAnswer(
        sample=0, answer=answer, verdicts=verdicts, score=score, raw=score
      ),
      op="d",
      seed=1,
    )
  )
  assert found.verdict == verdict
  assert found.rubric_defect == defect


def test_meta_optimizer_climbs_its_ladder(roles):
  arguments = dict(
    formula="f",
    statistics="",
    reference="",
    exploits="",
    patches="",
    train_mean=0.5,
    proposer_guidance="",
    history="",
  )
  first = ask(
    roles.meta_optimizer.rewrite(
      **arguments,
      diagnoses="rubric_defect gameable_restates_task: 7",
      generator_guidance="",
      op="m1",
      seed=1,
    )
  )
  assert writers.LESSONS["uses"] in first.generator
  assert writers.LESSONS["before"] not in first.generator
  second = ask(
    roles.meta_optimizer.rewrite(
      **arguments,
      diagnoses="rubric_defect untestable_vague: 4",
      generator_guidance=first.generator,
      op="m2",
      seed=1,
    )
  )
  assert writers.LESSONS["before"] in second.generator


def test_scripted_chat_is_keyed_by_text_and_seed():
  chat = ScriptedChat(name="s", responders=readers.RESPONDERS)

  def reply(seed, text=TEXT):
    request = ChatRequest(
      role="honest",
      messages=(Message(role="user", content=text),),
      operation="o",
      seed=seed,
    )
    return ask(chat.complete(request)).text

  assert reply(1) == reply(1)
  assert len({reply(seed) for seed in range(8)}) > 3


def test_scripted_chat_refuses_a_role_without_a_script():
  chat = ScriptedChat(name="s", responders={})
  request = ChatRequest(
    role="x",
    messages=(Message(role="system", content="Role: cook\n\nCook."),),
    operation="o",
    seed=1,
  )
  with pytest.raises(ChatError, match="cook"):
    ask(chat.complete(request))


def test_the_pair_checker_reads_the_request_and_no_length(roles):
  told = (
    "mia and tom came to the barn . the bell made no sound . tom tied the rope"
    " to the bell ."
  )
  ramble = "the sun was high . the wind was cold . it was a long day . " * 3

  def better(first, second):
    return ask(
      roles.pair_checker.compare(
        prompt=PROMPT, first=first, second=second, op="p", seed=0
      )
    )

  assert better(told, LIST) == "first"
  assert better(LIST, told) == "second"
  assert better(ramble, told) == "second"
  assert better(LIST, LIST) == "equal"
