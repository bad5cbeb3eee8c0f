"""llama.cpp through llama-cpp-python: a static batch, weights of the file."""

import ctypes
import importlib.metadata
import os
from typing import Any

import llama_cpp as lib

from experiments.speed.contestants.loop import Run, serve

# Called as long as the library logs.
_QUIET = lib.llama_log_callback(lambda *_: None)


def prepare(case: dict[str, Any]) -> tuple[Run, dict[str, Any]]:
  """Rows in static batches of `rows`, each until its longest is done."""
  lib.llama_backend_init()
  lib.llama_log_set(_QUIET, ctypes.c_void_p(0))
  model = lib.llama_model_load_from_file(
    case["gguf"].encode(), lib.llama_model_default_params()
  )
  rows = [ids for ids in case["prompts"] for _ in range(case["n"])]
  limits = [size for size in case["limits"] for _ in range(case["n"])]
  width, prompt = min(case["rows"], len(rows)), len(rows[0])
  options = lib.llama_context_default_params()
  options.n_ctx = (prompt + max(limits)) * width
  options.n_seq_max = width
  options.n_batch = max(512, width * prompt)
  options.n_threads = options.n_threads_batch = os.cpu_count()
  context = lib.llama_init_from_model(model, options)
  chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
  lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_temp(1.0))
  lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_dist(1))
  batch = lib.llama_batch_init(width * prompt, 0, 1)

  def put(slot: int, token: int, position: int, row: int, wanted: bool) -> None:
    batch.token[slot], batch.pos[slot] = token, position
    batch.n_seq_id[slot], batch.seq_id[slot][0] = 1, row
    batch.logits[slot] = wanted

  def decode(count: int) -> None:
    batch.n_tokens = count
    assert lib.llama_decode(context, batch) == 0

  def one_batch(chosen: list[list[int]], new: int) -> None:
    lib.llama_memory_clear(lib.llama_get_memory(context), True)
    for row, ids in enumerate(chosen):
      for at, token in enumerate(ids):
        put(row * prompt + at, token, at, row, at == prompt - 1)
    decode(len(chosen) * prompt)
    places = [row * prompt + prompt - 1 for row in range(len(chosen))]
    for step in range(new):
      drawn = [lib.llama_sampler_sample(chain, context, at) for at in places]
      places = list(range(len(chosen)))
      if step < new - 1:
        for row, token in enumerate(drawn):
          put(row, token, prompt + step, row, True)
        decode(len(chosen))

  def run(number: int) -> None:
    del number
    for at in range(0, len(rows), width):
      one_batch(rows[at : at + width], max(limits[at : at + width]))

  version = importlib.metadata.version("llama-cpp-python")
  return run, {"versions": {"llama-cpp-python": version}}


if __name__ == "__main__":
  serve(prepare)
