"""One program compiled for TPUs, in a process of its own, and its buffers.

The compiler lays out all memory before it generates code, and writes the layout
down when asked to. Generating code takes most of its time and changes nothing
about memory, so that it is waited for only where its size is wanted.
"""

import collections
import dataclasses
import math
import multiprocessing
import pathlib
import re
import tempfile
import time
from typing import Any, Final

GIB: Final = 2**30
UNITS: Final = {"K": 2**10, "M": 2**20, "G": GIB}
# The last file that is written before code is generated.
LAST: Final = "*after_optimizations_after_buffer_assignment.txt"
LAYOUT: Final = "*after_optimizations-buffer-assignment.txt"
POLL_S: Final = 0.5
_OVER = re.compile(
  r"Ran out of memory.*?(?:required for HLO temporaries \(([\d.]+)([KMG])i?B?\)"
  r"|Used ([\d.]+)([KMG]) of [\d.]+[KMG] hbm)",
  re.DOTALL,
)
_ALLOCATION = re.compile(r"^allocation \d+: size (\d+), (.*)$")
_VALUE = re.compile(
  r"^ value: <\d+ (\S+) @\d+> \(size=(\d+),offset=(\d+)\): (\w+)\[([\d,]*)\]"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """What the compiler said.

  Attributes:
    memory: bytes a device: arguments, temporaries, fresh_outputs and, where
      code was generated, code. Empty if the layout was not reached.
    over: bytes of temporaries when they alone do not fit, else 0.
    buffers: temporaries by size, each shape once: array, bytes, by.
    seconds: of wall time.
  """

  memory: dict[str, int]
  over: int
  buffers: list[dict[str, Any]]
  seconds: float


class CompileError(RuntimeError):
  """The compiler failed, and not for want of memory."""


def compile_apart(setting: Any, program: str, *, whole: bool) -> Outcome:
  """Compiles a program of `plan_programs` as far as its memory is laid out.

  Args:
    setting: a `plan_programs.Setting`.
    program: its name.
    whole: wait for the generated code too.

  Raises:
    CompileError: see there; holds the compiler's message.
  """
  started = time.perf_counter()
  context = multiprocessing.get_context("spawn")
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    child = context.Process(target=_work, args=(setting, program, name))
    child.start()
    try:
      while child.is_alive():
        child.join(POLL_S)
        if not whole and list(folder.glob(f"dump/{LAST}")):
          break
    finally:
      child.kill()
      child.join()
    message = folder / "error.txt"
    said = message.read_text() if message.exists() else ""
    layout = list(folder.glob(f"dump/{LAYOUT}"))
    over = over_limit(said) if said else 0
    if not over and (said or not layout):
      raise CompileError(
        f"The compiler failed on the {program} for {setting.topology}:"
        f" {said or f'it ended with exit code {child.exitcode}'}"
      )
    memory, buffers = {}, []
    if layout:
      memory, buffers = read_layout(layout[0].read_text())
    code = folder / "code.txt"
    if code.exists():
      memory["code"] = int(code.read_text())
  seconds = time.perf_counter() - started
  return Outcome(memory=memory, over=over, buffers=buffers, seconds=seconds)


def _work(setting: Any, program: str, folder: str) -> None:
  """Runs in the child; leaves an error's text or the size of the code."""
  import jax

  from experiments import plan_programs

  place = pathlib.Path(folder)
  options = {
    "xla_dump_to": str(place / "dump"),
    "xla_dump_hlo_as_text": True,
  }
  try:
    lowered = plan_programs.lower(setting, program)
    compiled = lowered.compile(compiler_options=options)
  except jax.errors.JaxRuntimeError as error:  # the parent tells of it
    (place / "error.txt").write_text(str(error))
    return
  size = compiled.memory_analysis().generated_code_size_in_bytes  # pyright: ignore
  (place / "code.txt").write_text(str(size))


def over_limit(message: str) -> int:
  """Bytes that were wanted, of a message that memory ran out; 0 of another."""
  found = _OVER.search(message)
  if found is None:
    return 0
  size, unit = (found[1], found[2]) if found[1] else (found[3], found[4])
  return int(float(size) * UNITS[unit])


def read_layout(text: str) -> tuple[dict[str, int], list[dict[str, Any]]]:
  """Bytes a device by use and the temporaries, of a compiler's layout.

  Memory on the chip itself, which has a color of its own, is left out.
  """
  memory: collections.Counter[str] = collections.Counter(
    arguments=0, temporaries=0, fresh_outputs=0
  )
  found: dict[str, dict[str, Any]] = {}
  use = ""
  for line in text.splitlines():
    head = _ALLOCATION.match(line)
    if head:
      use = _use(head[2])
      memory[use] += int(head[1])
      continue
    value = _VALUE.match(line)
    if value and use == "temporaries":
      name = f"{value[4]}[{value[5]}]"
      entry = {"array": name, "bytes": int(value[2]), "by": value[1]}
      found.setdefault(name, entry)
  memory.pop("", None)
  buffers = sorted(found.values(), key=lambda b: -b["bytes"])
  return dict(memory), buffers


def _use(description: str) -> str:
  """What an allocation in the main memory is for; "" of any other."""
  if re.search(r"\bcolor [1-9]", description):
    return ""
  if "parameter" in description:
    return "arguments"
  if "preallocated-temp" in description:
    return "temporaries"
  return "fresh_outputs" if "live-out" in description else ""


def logits_among(
  buffers: list[dict[str, Any]], *, vocab: int, width: int, parts: int
) -> list[str]:
  """Temporaries that hold the logits of more tokens than a chunk has.

  Args:
    buffers: from `read_layout`.
    vocab: V.
    width: D; an array of D by vocabulary is a head, a gradient or a moment.
    parts: pieces that the vocabulary is cut into.
  """
  from varl_jax.rl.logprobs import MAX_LOGITS

  found = []
  for buffer in buffers:
    kind, sizes = buffer["array"].rstrip("]").split("[")
    shape = [int(size) for size in sizes.split(",") if size]
    total = math.prod(shape)
    pieces = {vocab // p for p in range(1, parts + 1) if vocab % p == 0}
    pieces &= set(shape)
    if kind != "f32" or not pieces or total <= 2 * MAX_LOGITS:
      continue
    others = {total // piece for piece in pieces}
    heads = {width // p for p in range(1, parts + 1) if width % p == 0}
    if not others & heads or shape[-1] in pieces:
      found.append(buffer["array"])
  return found
