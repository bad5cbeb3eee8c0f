"""Evaluates a model on a benchmark, grades saved answers, compares results.

    python -m varl_jax.evaluate --benchmark=healthbench_hard --data=hard.jsonl \
        --model=my-model --model_url=http://127.0.0.1:8000/v1 --judge=gpt-5.4

    ... --model=runs/mine          a run's newest checkpoint, or a model folder
    ... --answers=FILE_OR_FOLDER   grade saved answers, perhaps by another judge
    ... --compare=A,B --against=C,D   results folders; nothing is called

Keys stand in environment variables (`--config.endpoints.judge.api_key_env`).
Exit codes: 0 done, 2 wrong input, 3 judge or model failed too often (what came
is saved), 130 interrupted (likewise). The same command goes on where it
stopped.
"""

import dataclasses
import pathlib
import re
from typing import Final

from absl import app, flags, logging
from ml_collections import config_flags

from varl_jax import evaluation_run
from varl_jax.benchmarks import BENCHMARKS, BenchmarkError
from varl_jax.benchmarks.answering import METHODS, OVER_PASSAGES
from varl_jax.command_line import last_line, parse, refuse
from varl_jax.config import Config, ConfigError, from_config_dict
from varl_jax.evaluation_data import SOLVER, Request

_DEFAULTS: Final = pathlib.Path(__file__).with_name("evaluation_config.py")
_CONFIG = config_flags.DEFINE_config_file(
  "config", None, "Config file; without one, the defaults of all settings."
)


def _text(name: str, default: str, told: str) -> flags.FlagHolder[str]:
  return flags.DEFINE_string(name, default, told)  # pyright: ignore


_BENCHMARK = _text(
  "benchmark",
  "",
  f"{', '.join(BENCHMARKS)}, or a Python file with your own.",
)
_DATA = _text("data", "", "File or folder with its rows.")
_MODEL = _text("model", "", "Local checkpoint, or a model of an endpoint.")
_MODEL_URL = _text("model_url", "", "Address of the endpoint, ending in /v1.")
_ANSWERS = _text("answers", "", "Saved answers: a file or a results folder.")
_METHOD = _text(
  "method",
  "none",
  f"What helps the model: {', '.join((*METHODS, *sorted(OVER_PASSAGES)))}.",
)
_JUDGE = _text("judge", "", "The judge's model.")
_JUDGE_URL = _text("judge_url", "", "Address of its endpoint, ending in /v1.")
_OFFICIAL = flags.DEFINE_boolean(
  "official_judge", False, "Take the judge of the benchmark's authors."
)
_STRICT = flags.DEFINE_boolean(
  "strict", False, "Append the strict note, as probes do."
)
_SAMPLES = flags.DEFINE_integer("samples", 1, "Answers a task.", lower_bound=1)
_TEMPERATURE = flags.DEFINE_float(
  "temperature", None, "Of the answers; 1 without it.", lower_bound=0.0
)
_GREEDY = flags.DEFINE_boolean("greedy", False, "The same as temperature 0.")
_SYSTEM = _text("system", SOLVER, "solver, none, or a text file.")
_IMAGES = flags.DEFINE_boolean("images", False, "The endpoint takes images.")
_CONCURRENCY = flags.DEFINE_integer(
  "concurrency", None, "Calls in flight, of model and judge each.", 1
)
_LIMIT = flags.DEFINE_integer("limit", 0, "First tasks only.", lower_bound=0)
_ERRATA = _text("errata", "", "Corrections to the data, JSON lines.")
_SHA256 = _text("data_sha256", "", "The hash that the data must have.")
_WORKDIR = _text("workdir", "", "Results folder; evaluations/... without it.")
_SHOW_ITEMS = flags.DEFINE_boolean(
  "show_items", False, "Show items in the page though their authors object."
)
_COMPARE = flags.DEFINE_list("compare", [], "Results folders to compare.")
_AGAINST = flags.DEFINE_list(
  "against", [], "The same arms, in the same order, under another judge."
)
_CONVERT = _text(
  "convert", "", "Write the data as ArrayRecord into this folder, and end."
)
_TO_INSPECT = _text("to_inspect", "", "Write the results as an Inspect log.")


def main(argv: list[str]) -> int:
  """Runs; returns the exit code."""
  if len(argv) > 1:
    return refuse(f"Unexpected argument {argv[1]!r}; see --help.")
  logging.set_verbosity(logging.WARNING)
  try:
    if _COMPARE.value:
      return evaluation_run.compare(
        _COMPARE.value, _AGAINST.value, workdir=_WORKDIR.value
      )
    if _CONVERT.value:
      return evaluation_run.convert(
        _BENCHMARK.value, _DATA.value, _CONVERT.value
      )
    return evaluation_run.run(
      _request(),
      show_items=_SHOW_ITEMS.value,
      to_inspect=_TO_INSPECT.value,
    )
  except evaluation_run.REFUSALS as error:
    return refuse(str(error))
  except OSError as error:
    return refuse(last_line(error))
  except KeyboardInterrupt:
    refuse("Stopped at once; the same command goes on from what was saved.")
    return 130


def _request() -> Request:
  """The flags as a request."""
  request = Request(
    benchmark=_BENCHMARK.value,
    data=_DATA.value,
    config=_config(),
    workdir=pathlib.Path(_WORKDIR.value),
    model=_MODEL.value,
    answers=_ANSWERS.value,
    method=_METHOD.value,
    samples=_SAMPLES.value,
    temperature=_temperature(),
    system=_SYSTEM.value,
    images=_IMAGES.value,
    limit=_LIMIT.value,
    strict=_STRICT.value,
    official_judge=_OFFICIAL.value,
    errata=_ERRATA.value,
    data_sha256=_SHA256.value,
  )
  if not _WORKDIR.value:
    who = _MODEL.value or pathlib.Path(_ANSWERS.value or "answers").stem
    parts = (_BENCHMARK.value, who, request.config.endpoints.judge.model)
    name = "-".join(re.sub(r"[^\w.]+", "_", part) for part in parts if part)
    request = dataclasses.replace(
      request, workdir=pathlib.Path("evaluations") / name
    )
  return request


def _temperature() -> float:
  given = _TEMPERATURE.value
  if _GREEDY.value and given:
    raise BenchmarkError("--greedy means --temperature=0; give one of them.")
  return 0.0 if _GREEDY.value else 1.0 if given is None else given


def _config() -> Config:
  config = from_config_dict(_CONFIG.value)
  roles, judge = config.endpoints.roles, config.endpoints.judge
  if _JUDGE.value and _OFFICIAL.value:
    raise ConfigError("--judge and --official_judge exclude each other.")
  many = _CONCURRENCY.value
  return dataclasses.replace(
    config,
    endpoints=dataclasses.replace(
      config.endpoints,
      roles=dataclasses.replace(
        roles,
        base_url=_MODEL_URL.value or roles.base_url,
        concurrency=many or roles.concurrency,
      ),
      judge=dataclasses.replace(
        judge,
        model=_JUDGE.value or judge.model,
        base_url=_JUDGE_URL.value or judge.base_url,
        concurrency=many or judge.concurrency,
      ),
    ),
  )


def _parse(argv: list[str]) -> list[str]:
  """Reads the flags; single settings may be given without a config file."""
  given = {flag.lstrip("-").partition("=")[0] for flag in argv[1:]}
  defaults = [] if "config" in given else [f"--config={_DEFAULTS}"]
  return parse([argv[0], *defaults, *argv[1:]])


if __name__ == "__main__":
  app.run(main, flags_parser=_parse)
