"""Why rubrics were exploited: the cases of runs, sorted by an auditor.

    python -m varl_jax.analysis runs/story
    python -m varl_jax.analysis runs/a runs/b --out=runs/exploits \
        --auditor=gpt-5.5 --effort=medium

Every case a run kept is sorted into one of six categories (`roles.auditor`).
The story world's own script audits without a network; for other domains name a
model of an OpenAI-compatible endpoint, whose key stands in OPENAI_API_KEY
(`--api_key_env`). Answers are kept in each run's `audits.jsonl` as they come,
so the same command goes on where it was stopped. Writes `analysis.json` and
`analysis.md`. Exit codes: 0 done, 2 wrong input, 3 the auditor failed on some
pairs (the pages say on how many), 130 interrupted.
"""

import argparse
import asyncio
import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, Final

from varl_jax import exploit_audit, exploit_shares
from varl_jax.analysis_page import render
from varl_jax.command_line import refuse
from varl_jax.config import ConfigError, EndpointConfig
from varl_jax.domains import STORY
from varl_jax.exploit_audit import Audited
from varl_jax.exploit_runs import AnalysisError, Run, read_run
from varl_jax.files import replace_text
from varl_jax.llm.chat import ChatModel
from varl_jax.llm.openai_chat import make_chat
from varl_jax.prompts.loader import PromptError, load_prompts
from varl_jax.roles.auditor import ROLE, Auditor

JSON_NAME: Final = "analysis.json"
PAGE_NAME: Final = "analysis.md"
DONE, FAILED, INTERRUPTED = 0, 3, 130


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wish:
  """What was asked for.

  Attributes:
    endpoint: of the auditor; its model is "" for the domain's own script.
    saved_only: take the audits there are and ask for none.
    per_category: most examples of a category.
  """

  endpoint: EndpointConfig
  saved_only: bool = False
  per_category: int = 1


def analyse(
  folders: Sequence[pathlib.Path], out: pathlib.Path, wish: Wish
) -> dict[str, Any]:
  """Audits what is missing, then writes both files.

  Raises:
    AnalysisError: see the sentence; audits that came are kept.
    ConfigError: the endpoint cannot be used.
    PromptError: a domain's prompts cannot be loaded.
    OSError: something cannot be read or written.
  """
  names = [folder.resolve() for folder in folders]
  if len(set(names)) < len(names):
    raise AnalysisError("A run folder is named twice; name each once.")
  runs = [read_run(folder) for folder in folders]
  if not any(run.pairs for run in runs):
    raise AnalysisError(
      "There is no exploit case of the solver in these runs; one is kept where"
      " the method repairs cases or method.measure_exploits is on."
    )
  found = [_saved(run) for run in runs]
  if not wish.saved_only:
    found = asyncio.run(_audit(runs, _models(runs, wish), wish))
  if exploit_audit.every_pair_failed(found):
    kinds = sorted({kind for audited in found for kind in audited.failures})
    raise AnalysisError(
      f"The auditor gave no usable reply at all ({', '.join(kinds)}); see to"
      " its model and repeat the command."
    )
  result = exploit_shares.analysis(found, per_category=wish.per_category)
  out.mkdir(parents=True, exist_ok=True)
  replace_text(out / JSON_NAME, json.dumps(result, indent=1) + "\n")
  replace_text(out / PAGE_NAME, render(result), errors="replace")
  return result


def _saved(run: Run) -> Audited:
  prompt = load_prompts(run.domain).system(ROLE).content
  return exploit_audit.saved(run, prompt)


def _models(
  runs: Sequence[Run], wish: Wish
) -> dict[str, tuple[ChatModel, str]]:
  """The auditor of each domain, and the name its answers are kept under."""
  if wish.endpoint.model:
    chat = make_chat(wish.endpoint)
    effort = wish.endpoint.effort
    name = f"{wish.endpoint.model} ({effort})" if effort else chat.name
    return {run.domain: (chat, name) for run in runs}
  other = next((run for run in runs if run.domain != STORY), None)
  if other is not None:
    raise AnalysisError(
      f"Domain {other.domain!r} of {other.folder} has no auditor of its own;"
      " name a model by --auditor, or take what is saved by --saved_only."
    )
  from varl_jax.story.world import CHAT  # a domain loads only its own parts

  return {STORY: (CHAT, CHAT.name)}


async def _audit(
  runs: Sequence[Run],
  models: dict[str, tuple[ChatModel, str]],
  wish: Wish,
) -> list[Audited]:
  found = []
  for run in runs:
    chat, name = models[run.domain]
    found.append(
      await exploit_audit.audited(
        run,
        Auditor(chat=chat, prompts=load_prompts(run.domain)),
        name=name,
        concurrency=wish.endpoint.concurrency,
      )
    )
    told = f"{len(found[-1].audits)} of {len(run.pairs)} pairs audited"
    print(f"{run.folder}: {told}", flush=True)
  return found


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
  known = EndpointConfig()
  parser = argparse.ArgumentParser(
    prog="python -m varl_jax.analysis",
    description="Sorts the exploit cases of runs into categories.",
  )
  add = parser.add_argument
  add("workdir", nargs="+", type=pathlib.Path, help="a run's folder")
  add("--out", type=pathlib.Path, help="folder of the results; of one run, its")
  add("--auditor", default="", help="a model of an endpoint")
  add("--auditor_url", default="", help="its server, ending in /v1")
  add("--effort", default="", help="its reasoning effort; the paper: medium")
  add("--api_key_env", default=known.api_key_env, help='variable, "" for none')
  add("--max_tokens", type=int, default=known.max_tokens, help="of a reply")
  add(
    "--concurrency", type=int, default=known.concurrency, help="calls at once"
  )
  add("--saved_only", action="store_true", help="ask the auditor nothing")
  add("--examples", type=int, default=1, help="cases shown of a category")
  return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
  """Entry point; returns the exit code."""
  chosen = _arguments(arguments)
  folders, out = chosen.workdir, chosen.out
  if out is None:
    if len(folders) > 1:
      return refuse(
        "Several runs are analysed together; name a folder by --out."
      )
    out = folders[0]
  if chosen.concurrency < 1 or chosen.examples < 0:
    return refuse("--concurrency is at least 1 and --examples at least 0.")
  wish = Wish(
    endpoint=EndpointConfig(
      model=chosen.auditor,
      base_url=chosen.auditor_url,
      effort=chosen.effort,
      api_key_env=chosen.api_key_env,
      max_tokens=chosen.max_tokens,
      concurrency=chosen.concurrency,
    ),
    saved_only=chosen.saved_only,
    per_category=chosen.examples,
  )
  try:
    result = analyse(folders, out, wish)
  except (AnalysisError, ConfigError, PromptError) as error:
    return refuse(str(error))
  except OSError as error:
    return refuse(
      f"The analysis cannot be written ({error.strerror or error}:"
      f" {error.filename or out}); mend that and run it again."
    )
  except KeyboardInterrupt:
    refuse("Stopped; the same command goes on from the audits that are kept.")
    return INTERRUPTED
  print(out / PAGE_NAME)
  return FAILED if any(run["failures"] for run in result["runs"]) else DONE


if __name__ == "__main__":
  sys.exit(main())
