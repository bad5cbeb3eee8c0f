"""A whole grading against a judge that takes 200 ms: ours and the bounds.

    python -m experiments.speed.evaluate

525 answers, four criteria, three votes: 6,300 calls. For 32 and 256 calls in
flight it prints a JSON line:

    in_flight  calls under way at any time
    ours       seconds of an evaluation of saved answers: every vote asked,
               read and journaled, every verdict saved, scores and intervals
    peer       seconds of a bare aiohttp loop that sends as many bodies of the
               same size and reads the text of the reply
    ratio      of the medians
    samples    taken of each, alternating in one run
    bound      seconds if calls cost nothing: calls / in_flight times 200 ms
    to_bound   ours over the bound, of the medians

The server runs in a process of its own on the same machine.
"""

import asyncio
import contextlib
import json
import multiprocessing
import pathlib
import statistics
import tempfile
import time

from absl import app, flags, logging

from experiments.speed import judge_calls
from varl_jax.config import from_config_dict
from varl_jax.evaluation_data import Request
from varl_jax.evaluation_setup import prepare

TASKS = 525
CRITERIA = 4
VOTES = 3
CALLS = TASKS * CRITERIA * VOTES

_SAMPLES = flags.DEFINE_integer("evaluations", 3, "Samples of each.")
_IN_FLIGHT = flags.DEFINE_multi_integer(
  "calls_in_flight", [32, 256], "Calls under way."
)


def write_data(folder: pathlib.Path) -> None:
  """Rows of HealthBench Professional's shape, and an answer to each."""
  with (
    open(folder / "rows.jsonl", "w", encoding="utf-8") as rows,
    open(folder / "answers.jsonl", "w", encoding="utf-8") as answers,
  ):
    for index in range(TASKS):
      turn = {"role": "user", "content": f"Case {index}. " * 20}
      items = [
        {"criterion_text": f"States fact {i} of case {index}.", "points": 5}
        for i in range(CRITERIA)
      ]
      row = {"id": f"t{index}", "conversation": [turn], "rubric_items": items}
      rows.write(json.dumps(row) + "\n")
      answer = {"task_id": f"t{index}", "answer": judge_calls.ANSWER}
      answers.write(json.dumps(answer) + "\n")


def ours(url: str, in_flight: int, folder: pathlib.Path, out: str) -> float:
  """Seconds of an evaluation in a folder of its own."""
  endpoint = {
    "model": "judge",
    "base_url": url,
    "api_key_env": "",
    "concurrency": in_flight,
  }
  request = Request(
    benchmark="healthbench_professional",
    data=str(folder / "rows.jsonl"),
    answers=str(folder / "answers.jsonl"),
    config=from_config_dict({"endpoints": {"judge": endpoint}}),
    workdir=folder / out,
  )
  with contextlib.ExitStack() as stack:
    prepared = prepare(
      request,
      interrupted=lambda: False,
      show=lambda state, total: None,
      notify=lambda sentence: None,
      stack=stack,
    )
    began = time.perf_counter()
    outcome = prepared.evaluation.run()
    taken = time.perf_counter() - began
    assert outcome.results["scored"] == TASKS, outcome.failure
    assert prepared.usage()["calls/judge/calls"] == CALLS
  return taken


def bare(url: str, in_flight: int) -> float:
  """Seconds of the loop that does nothing but call."""
  began = time.perf_counter()
  asyncio.run(judge_calls.bare(url, in_flight)(0, CALLS))
  return time.perf_counter() - began


def measure(url: str, in_flight: int, folder: pathlib.Path) -> dict:
  """Alternates the two; medians."""
  taken: dict[str, list[float]] = {"ours": [], "peer": []}
  for sample in range(_SAMPLES.value):
    taken["peer"].append(bare(url, in_flight))
    taken["ours"].append(ours(url, in_flight, folder, f"{in_flight}-{sample}"))
  middle = {name: statistics.median(times) for name, times in taken.items()}
  bound = CALLS / in_flight * judge_calls.LATENCY_S
  return {
    "in_flight": in_flight,
    "ours": round(middle["ours"], 3),
    "peer": round(middle["peer"], 3),
    "ratio": round(middle["ours"] / middle["peer"], 3),
    "samples": _SAMPLES.value,
    "bound": round(bound, 3),
    "to_bound": round(middle["ours"] / bound, 3),
  }


def main(argv: list[str]) -> None:
  """Starts the server, measures, prints."""
  if len(argv) > 1:
    raise app.UsageError(f"Unknown argument {argv[1]!r}.")
  logging.set_verbosity(logging.WARNING)
  here, there = multiprocessing.Pipe()
  context = multiprocessing.get_context("spawn")
  server = context.Process(target=judge_calls.serve, args=(there,), daemon=True)
  server.start()
  try:
    url = f"http://127.0.0.1:{here.recv()}/v1"
    with tempfile.TemporaryDirectory() as name:
      folder = pathlib.Path(name)
      write_data(folder)
      for in_flight in _IN_FLIGHT.value:
        print(json.dumps(measure(url, in_flight, folder)), flush=True)
  finally:
    server.terminate()
    server.join()


if __name__ == "__main__":
  app.run(main)
