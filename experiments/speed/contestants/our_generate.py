"""Our sampler: `Sampler.generate`, every prompt read once for its n answers."""

import importlib.metadata
from typing import Any

from experiments.speed.contestants.loop import Run, serve
from experiments.speed.contestants.our_update import shape_of
from varl_jax.models.loading import load_model
from varl_jax.models.registry import make_model
from varl_jax.sampling.sampler import Begun, Sampler


def prepare(case: dict[str, Any]) -> tuple[Run, dict[str, Any]]:
  """`n` answers to each prompt, of the prompt's own length in `limits`."""
  config, params, _ = load_model(case["model"])
  sampler = Sampler(
    model=make_model(config),
    stop_ids=(),
    max_prompt=max(map(len, case["prompts"])),
    max_new=max(case["limits"]),
    max_rows=case["rows"],
  )
  begun = [Begun(limit=size) for size in case["limits"]]

  def run(number: int) -> None:
    found = sampler.generate(
      case["prompts"],
      case["n"],
      params=params,
      step=number,
      tasks=range(len(case["prompts"])),
      begun=begun,
    )
    made = [len(group[0].tokens) for group in found]
    assert made == case["limits"]

  versions = {
    name: importlib.metadata.version(name) for name in ("varl_jax", "jax")
  }
  return run, {"versions": versions, "shape": shape_of(config)}


if __name__ == "__main__":
  serve(prepare)
