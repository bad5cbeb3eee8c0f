"""What an evaluation is made of: data, model, judge, and a folder of its own.

Everything that decides the results is gathered as settings, which claim the
results folder and stand in its `results.json`.
"""

import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from varl_jax.answer_sources import AnswerSource, CallSource, SavedSource
from varl_jax.benchmarks import answering, inspect_logs
from varl_jax.benchmarks.folder import (
  CALLS,
  SETTINGS,
  claim,
  import_answers,
  read_json,
)
from varl_jax.benchmarks.grading import AnswerGrader, NoJudge
from varl_jax.benchmarks.medxpertqa import image_files
from varl_jax.benchmarks.protocol import (
  Benchmark,
  BenchmarkError,
  BenchmarkTask,
)
from varl_jax.config import Config, EndpointConfig
from varl_jax.evaluation import Evaluation, ShowProgress
from varl_jax.evaluation_data import (
  SOLVER,
  Data,
  Request,
  digest,
  load_data,
  notices,
)
from varl_jax.frozen_models import total_usage
from varl_jax.llm.journal import Journal, JournaledChat
from varl_jax.llm.openai_chat import make_chat
from varl_jax.prompts.loader import load_prompts
from varl_jax.retrieval_answers import register
from varl_jax.roles.bundle import make_judge
from varl_jax.roles.grading import Grader
from varl_jax.roles.judge import ROLE as JUDGE
from varl_jax.run_folder import lock
from varl_jax.types import to_json

BUILT_IN: Final = ("story", "smollm2")
NO_SYSTEM: Final = "none"


def is_checkpoint(model: str) -> bool:
  """Whether `--model` names something on this machine."""
  if model in BUILT_IN or model.startswith((".", "/", "~")):
    return True
  return pathlib.Path(model).exists()


def with_official_judge(config: Config, benchmark: Benchmark) -> Config:
  """The config with the judge that the benchmark's authors use.

  Raises:
    BenchmarkError: they name none.
  """
  official = benchmark.official_judge
  if official is None:
    raise BenchmarkError(
      f"No official judge of {benchmark.title} is known; name one by --judge."
    )
  judge = dataclasses.replace(
    config.endpoints.judge, model=official.model, effort=official.effort
  )
  return dataclasses.replace(
    config,
    endpoints=dataclasses.replace(config.endpoints, judge=judge),
    judge=dataclasses.replace(config.judge, votes=official.votes),
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
  """An evaluation ready to run, with what its results are to tell.

  Attributes:
    evaluation: to run.
    data: what it is on.
    settings: what decides its results.
    endpoints: models that are called.
    paid: by role, what the folder's calls took before this start.
  """

  evaluation: Evaluation
  data: Data
  settings: Mapping[str, Any]
  endpoints: tuple[JournaledChat, ...]
  paid: Mapping[str, Mapping[str, float]]

  def usage(self) -> dict[str, float]:
    """Calls, tokens and US dollars of this start; see `total_usage`."""
    return total_usage(self.endpoints)

  def cost(self) -> float:
    """US dollars over all starts."""
    before = sum(counts["cost"] for counts in self.paid.values())
    return before + self.usage().get("calls/cost", 0.0)


def prepare(
  request: Request,
  *,
  interrupted: Callable[[], bool],
  show: ShowProgress,
  notify: Callable[[str], None],
  stack: contextlib.ExitStack,
) -> Prepared:
  """Loads everything, then claims the folder.

  Raises:
    BenchmarkError, ConfigError, PromptError, RunError, JournalError,
      ModelError: something cannot be used; the message names it and the mend.
  """
  loaded = load_data(request)
  config = request.config
  if request.official_judge:
    config = with_official_judge(config, loaded.benchmark)
  judged, loaded = _who_grades(config, loaded)
  for sentence in notices(loaded):
    notify(sentence)
  request.workdir.mkdir(parents=True, exist_ok=True)
  stack.enter_context(lock(request.workdir))
  journal = stack.enter_context(Journal(request.workdir / CALLS))
  opener = _Opener(config=config, journal=journal, notify=notify)
  grader, judge_settings = _grader(request, config, loaded, opener, judged)
  stack.callback(grader.grader.close)
  register(config.retrieval, loaded.benchmark.domain, stack=stack)
  source, model_settings, tasks = _source(request, config, loaded, opener)
  settings = {
    "benchmark": loaded.benchmark.name,
    "data": loaded.describe(),
    "samples": request.samples,
    "seed": config.seed,
    "model": model_settings,
    "judge": judge_settings,
  }
  claim(request.workdir, settings)
  evaluation = Evaluation(
    benchmark=loaded.benchmark,
    tasks=tasks,
    samples=request.samples,
    folder=request.workdir,
    source=source,
    grader=grader,
    in_flight=_answers_in_flight(config),
    max_failure_rate=config.judge.max_failure_rate,
    interrupted=interrupted,
    show=show,
    seed=config.seed,
  )
  return Prepared(
    evaluation=evaluation,
    data=loaded,
    settings=settings,
    endpoints=tuple(opener.opened),
    paid=journal.totals(),
  )


def _answers_in_flight(config: Config) -> int:
  """Enough to keep the judge's endpoint busy with answers of one criterion.

  No more, since what is begun is finished before a stop.
  """
  calls = config.endpoints.judge.concurrency
  return math.ceil(calls / config.judge.votes) + 1


def _who_grades(config: Config, loaded: Data) -> tuple[bool, Data]:
  """Whether a judge is asked, and the tasks with the checks that count.

  Where programs can decide everything, a judge that is named takes their place;
  where they decide some criteria, it decides the others.

  Raises:
    BenchmarkError: a judge is needed and none is named.
  """
  items = [item for task in loaded.tasks for item in task.criteria]
  programs = bool(loaded.benchmark.checks.checks)
  everything = programs and all(item.check is not None for item in items)
  named = bool(config.endpoints.judge.model)
  if not named and not everything:
    raise BenchmarkError(
      f"{loaded.benchmark.title} is graded by a judge; name its model by"
      " --judge, or take --official_judge."
    )
  if named and (everything or not programs):
    plain = [_without_checks(task) for task in loaded.tasks]
    return True, dataclasses.replace(loaded, tasks=plain)
  return named, loaded


def _without_checks(task: BenchmarkTask) -> BenchmarkTask:
  return dataclasses.replace(
    task,
    criteria=tuple(
      dataclasses.replace(item, check=None) for item in task.criteria
    ),
  )


@dataclasses.dataclass
class _Opener:
  """Opens endpoints on one journal."""

  config: Config
  journal: Journal
  notify: Callable[[str], None]
  opened: list[JournaledChat] = dataclasses.field(default_factory=list)

  def open(self, endpoint: EndpointConfig) -> JournaledChat:
    chat = make_chat(
      endpoint,
      journal=self.journal,
      run_seed=self.config.seed,
      notify=self.notify,
    )
    assert isinstance(chat, JournaledChat)
    self.opened.append(chat)
    return chat


def _grader(
  request: Request, config: Config, loaded: Data, opener: _Opener, judged: bool
) -> tuple[AnswerGrader, dict[str, Any]]:
  endpoint = config.endpoints.judge
  prompts = load_prompts(loaded.benchmark.domain)
  chat = opener.open(endpoint) if judged else NoJudge()
  judge = make_judge(chat, prompts, config.judge)
  grader = Grader(
    judge=judge,
    checks=loaded.benchmark.checks,
    # The endpoint bounds calls; a queue before it keeps it busy.
    concurrency=4 * judge.votes * endpoint.concurrency,
  )
  answer_grader = AnswerGrader(
    grader=grader, seed=config.seed, strict=request.strict
  )
  if not judged:
    return answer_grader, {"model": "none", "template": "program"}
  template = judge.template
  return answer_grader, {
    **judge.description,
    "strict": request.strict,
    "repeats": answer_grader.repeats,
    "effort": endpoint.effort,
    "max_tokens": endpoint.max_tokens,
    "official": request.official_judge,
    "prompt_sha256": template.sha256
    if template is not None
    else digest(prompts.system(JUDGE).content + prompts.strict_note),
  }


def _source(
  request: Request, config: Config, loaded: Data, opener: _Opener
) -> tuple[AnswerSource, dict[str, Any], Sequence[BenchmarkTask]]:
  if request.answers:
    return _saved(request, loaded)
  if not request.model:
    raise BenchmarkError("Name who answers by --model, or give --answers.")
  make = answering.find_method(request.method)
  if is_checkpoint(request.model):
    return _local(request, config, loaded)
  tasks = _with_images(request, loaded)
  system = system_text(request.system, loaded.benchmark.domain)
  endpoint = dataclasses.replace(config.endpoints.roles, model=request.model)
  decoding = answering.Decoding(
    temperature=request.temperature,
    seed=config.seed,
    system=system,
    images=request.images,
  )
  answerer = make(opener.open(endpoint), decoding)
  return (
    CallSource(answerer=answerer, concurrency=endpoint.concurrency),
    {
      "kind": "endpoint",
      "name": request.model,
      "effort": endpoint.effort,
      "max_tokens": endpoint.max_tokens,
      "system_sha256": digest(system) if system else "",
      **answerer.describe(),
    },
    tasks,
  )


def system_text(name: str, domain: str) -> str:
  """The system message that `--system` names.

  Raises:
    BenchmarkError: it is a file that cannot be read.
  """
  if name == NO_SYSTEM:
    return ""
  if name == SOLVER:
    return load_prompts(domain).system(SOLVER).content
  try:
    return pathlib.Path(name).read_text(encoding="utf-8").strip()
  except (OSError, UnicodeDecodeError) as error:
    raise BenchmarkError(
      f"--system is {SOLVER}, {NO_SYSTEM} or a text file, and {name} cannot be"
      f" read ({error})."
    ) from error


def _with_images(request: Request, loaded: Data) -> list[BenchmarkTask]:
  """Tasks with their images read in.

  Raises:
    BenchmarkError: there are images and the model is not said to take any.
  """
  count = sum(bool(task.images) for task in loaded.tasks)
  if count and not request.images:
    raise BenchmarkError(
      f"{count} tasks show images; add --images if {request.model} takes them,"
      " or take the text part alone."
    )
  folder = loaded.files[0].path.parent
  try:
    return [
      dataclasses.replace(
        task, images=tuple(map(answering.data_url, image_files(task, folder)))
      )
      if task.images
      else task
      for task in loaded.tasks
    ]
  except ValueError as error:
    raise BenchmarkError(str(error)) from error


def _saved(
  request: Request, loaded: Data
) -> tuple[AnswerSource, dict[str, Any], Sequence[BenchmarkTask]]:
  path = pathlib.Path(request.answers)
  rows = None
  if path.suffix in inspect_logs.ENDINGS:
    rows = [to_json(answer) for answer in inspect_logs.read_log(path)[0]]
  found = import_answers(
    path, loaded.all_ids, samples=request.samples, rows=rows
  )
  before: Mapping[str, Any] = {}
  if path.is_dir() and (path / SETTINGS).is_file():
    before = read_json(path / SETTINGS).get("model", {})
  texts = sorted((*key, one.answer or "") for key, one in found.items())
  return (
    SavedSource(answers=found),
    {
      "kind": "saved",
      **{k: v for k, v in before.items() if k not in ("kind", "saved_sha256")},
      "name": before.get("name") or path.stem,
      "saved_sha256": digest(repr(texts).encode("utf-8", "surrogatepass")),
    },
    loaded.tasks,
  )


def _local(
  request: Request, config: Config, loaded: Data
) -> tuple[AnswerSource, dict[str, Any], Sequence[BenchmarkTask]]:
  if request.method != "none":
    raise BenchmarkError("A local checkpoint answers by --method=none alone.")
  if any(task.images for task in loaded.tasks):
    raise BenchmarkError(
      f"{request.model} is a text model and the data hold images; take the text"
      " part alone."
    )
  # Loads jax, which nothing else here needs.
  from varl_jax import checkpoint_answers

  source, settings = checkpoint_answers.open_checkpoint(
    request.model,
    config=config,
    samples=request.samples,
    temperature=request.temperature,
    system=None
    if request.system == SOLVER
    else system_text(request.system, loaded.benchmark.domain),
    domain=loaded.benchmark.domain,
  )
  return source, settings, loaded.tasks
