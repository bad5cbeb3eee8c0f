"""All roles of a run, built from one model or two."""

import dataclasses

from varl_jax.config import JudgeConfig
from varl_jax.llm.chat import ChatModel
from varl_jax.prompts.loader import load_prompts
from varl_jax.roles.adversary import Adversary
from varl_jax.roles.analyst import Analyst
from varl_jax.roles.generator import Generator
from varl_jax.roles.grading import Grader
from varl_jax.roles.honest import HonestAnswerer
from varl_jax.roles.judge import Judge
from varl_jax.roles.memo_optimizer import MemoOptimizer
from varl_jax.roles.meta_optimizer import MetaOptimizer
from varl_jax.roles.patcher import Patcher
from varl_jax.roles.proposer import Proposer
from varl_jax.roles.referee import Referee
from varl_jax.roles.repairer import Repairer
from varl_jax.rubrics.checks import CheckRegistry


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roles:
  """The roles of the generation service; any may be another model's."""

  proposer: Proposer
  generator: Generator
  adversary: Adversary
  honest: HonestAnswerer
  judge: Judge
  referee: Referee
  repairer: Repairer
  patcher: Patcher
  analyst: Analyst
  meta_optimizer: MetaOptimizer
  memo_optimizer: MemoOptimizer
  grader: Grader


def make_roles(
  chat: ChatModel,
  domain: str,
  judge_config: JudgeConfig,
  checks: CheckRegistry,
  *,
  judge_chat: ChatModel | None = None,
) -> Roles:
  """Builds the roles.

  Args:
    chat: the frozen model that fills them.
    domain: whose prompts they use.
    judge_config: votes and concurrency.
    checks: the domain's programmatic checks.
    judge_chat: another model for the judge alone.

  Raises:
    PromptError: the domain's prompts cannot be loaded.
  """
  prompts = load_prompts(domain)
  judge = Judge(
    chat=judge_chat or chat, prompts=prompts, votes=judge_config.votes
  )
  return Roles(
    proposer=Proposer(chat=chat, prompts=prompts),
    generator=Generator(chat=chat, prompts=prompts),
    adversary=Adversary(chat=chat, prompts=prompts),
    honest=HonestAnswerer(chat=chat, prompts=prompts),
    judge=judge,
    referee=Referee(chat=chat, prompts=prompts),
    repairer=Repairer(chat=chat, prompts=prompts),
    patcher=Patcher(chat=chat, prompts=prompts),
    analyst=Analyst(chat=chat, prompts=prompts),
    meta_optimizer=MetaOptimizer(chat=chat, prompts=prompts),
    memo_optimizer=MemoOptimizer(chat=chat, prompts=prompts),
    grader=Grader(
      judge=judge, checks=checks, concurrency=judge_config.concurrency
    ),
  )
