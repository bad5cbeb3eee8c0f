"""All roles of a run, built from one model or two."""

import dataclasses

from varl_jax.config import ConfigError, JudgeConfig
from varl_jax.llm.chat import ChatModel
from varl_jax.prompts.loader import PromptSet, load_prompts
from varl_jax.roles.adversary import Adversary
from varl_jax.roles.analyst import Analyst
from varl_jax.roles.checklist import ChecklistAuthor
from varl_jax.roles.decomposer import Decomposer
from varl_jax.roles.generator import Generator
from varl_jax.roles.grading import Grader
from varl_jax.roles.honest import HonestAnswerer
from varl_jax.roles.item_writer import ItemWriter
from varl_jax.roles.judge import Judge
from varl_jax.roles.judge_template import JudgeTemplate, load_template
from varl_jax.roles.memo_optimizer import MemoOptimizer
from varl_jax.roles.meta_optimizer import MetaOptimizer
from varl_jax.roles.pair_checker import PairChecker
from varl_jax.roles.patcher import Patcher
from varl_jax.roles.proposer import Proposer
from varl_jax.roles.rater import Rater
from varl_jax.roles.referee import Referee
from varl_jax.roles.repairer import Repairer
from varl_jax.roles.reviser import Reviser
from varl_jax.roles.rubric_author import JsonRubrics, RubricLanguage
from varl_jax.rubrics.check_pool import CheckPool
from varl_jax.rubrics.checks import CheckError, CheckRegistry


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
  pair_checker: PairChecker
  analyst: Analyst
  meta_optimizer: MetaOptimizer
  memo_optimizer: MemoOptimizer
  decomposer: Decomposer
  checklist: ChecklistAuthor
  rater: Rater
  item_writer: ItemWriter
  reviser: Reviser
  rubric_language: RubricLanguage
  grader: Grader

  def close(self) -> None:
    """Ends the verifiers' processes; harmless when repeated."""
    self.grader.close()


def make_roles(
  chat: ChatModel,
  domain: str,
  judge_config: JudgeConfig,
  checks: CheckRegistry,
  *,
  judge_chat: ChatModel | None = None,
  registry: str = "",
  language: RubricLanguage | None = None,
  verifiers: str = "",
) -> Roles:
  """Builds the roles.

  Args:
    chat: the frozen model that fills them.
    domain: whose prompts they use.
    judge_config: votes, concurrency, template, processes of verifiers.
    checks: the domain's programmatic checks.
    judge_chat: another model for the judge alone.
    registry: importable name of `checks`, `module:NAME`; needed where
      `judge.check_workers` is above 0.
    language: what a trained generator writes rubrics in, None for JSON.
    verifiers: what it is told of the checks, in JSON.

  Returns:
    The roles; close them when they are done with.

  Raises:
    PromptError: the domain's prompts cannot be loaded.
    ConfigError: the judge's template or the verifiers cannot be used.
  """
  prompts = load_prompts(domain)
  judge = make_judge(judge_chat or chat, prompts, judge_config)
  return Roles(
    proposer=Proposer(chat=chat, prompts=prompts),
    generator=Generator(chat=chat, prompts=prompts),
    adversary=Adversary(chat=chat, prompts=prompts),
    honest=HonestAnswerer(chat=chat, prompts=prompts),
    judge=judge,
    referee=Referee(chat=chat, prompts=prompts),
    repairer=Repairer(chat=chat, prompts=prompts),
    patcher=Patcher(chat=chat, prompts=prompts),
    pair_checker=PairChecker(chat=chat, prompts=prompts),
    analyst=Analyst(chat=chat, prompts=prompts),
    meta_optimizer=MetaOptimizer(chat=chat, prompts=prompts),
    memo_optimizer=MemoOptimizer(chat=chat, prompts=prompts),
    decomposer=Decomposer(chat=chat, prompts=prompts),
    checklist=ChecklistAuthor(chat=chat, prompts=prompts),
    rater=Rater(chat=judge.chat, prompts=prompts),
    item_writer=ItemWriter(chat=chat, prompts=prompts),
    reviser=Reviser(chat=chat, prompts=prompts),
    rubric_language=language
    or JsonRubrics(prompts=prompts, verifiers=verifiers),
    grader=Grader(
      judge=judge,
      checks=checks,
      pool=_make_pool(judge_config, checks, registry),
      concurrency=judge_config.concurrency,
    ),
  )


def make_judge(
  chat: ChatModel, prompts: PromptSet, config: JudgeConfig
) -> Judge:
  """The judge of the settings.

  Raises:
    ConfigError: the template cannot be used.
  """
  return Judge(
    chat=chat,
    prompts=prompts,
    votes=config.votes,
    one_request=config.one_request,
    template=judge_template(config),
  )


def judge_template(config: JudgeConfig) -> JudgeTemplate | None:
  """The published template of the settings, None for our own prompt.

  Raises:
    ConfigError: it cannot be used.
  """
  if config.template_path:
    return load_template(
      config.template_path,
      sha256=config.template_sha256,
      faithful=config.faithful,
    )
  if config.faithful or config.template_sha256:
    raise ConfigError(
      "judge.faithful and judge.template_sha256 are about a published template;"
      " give its file as judge.template_path."
    )
  return None


def _make_pool(
  config: JudgeConfig, checks: CheckRegistry, registry: str
) -> CheckPool | None:
  if not config.check_workers or not checks.checks:
    return None
  if not registry:
    raise ConfigError(
      "judge.check_workers needs verifiers that a process can import by name,"
      " which this domain does not have; set it to 0."
    )
  try:
    return CheckPool(
      registry,
      workers=config.check_workers,
      timeout_s=config.check_timeout_s,
    )
  except CheckError as error:
    raise ConfigError(str(error)) from error
