"""A contestant's side: it stays alive and takes one sample when it is asked.

Lines of JSON go in and out. The first in is the case, answered by what the
contestant is; each later one asks for a sample, answered by its seconds and the
process's peak memory so far. What libraries print goes to the error stream.

Contestants run in environments of their own: this module needs the standard
library alone.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

Run = Callable[[int], dict[str, Any] | None]


def serve(prepare: Callable[[dict[str, Any]], tuple[Run, dict[str, Any]]]):
  """Answers until the input ends.

  Args:
    prepare: from a case to what takes sample number i (it may return more to
      report) and to facts such as versions.
  """
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)

  def answer(value: dict[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()

  case = json.loads(sys.stdin.readline())
  began = time.perf_counter()
  run, facts = prepare(case)
  answer({**facts, "load_s": time.perf_counter() - began})
  for line in sys.stdin:
    number = json.loads(line)["sample"]
    began = time.perf_counter()
    found = run(number) or {}
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    answer({"seconds": seconds, "peak_mb": peak, **found})
