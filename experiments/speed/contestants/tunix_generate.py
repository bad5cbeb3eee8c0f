"""Tunix's sampler, a static batch."""

from typing import Any

from tunix.generate import sampler

from experiments.speed.contestants import tunix_model
from experiments.speed.contestants.loop import Run, serve


class Ids:
  """A tokenizer whose texts are the numbers of prompts."""

  def __init__(self, prompts: list[list[int]]):
    self.prompts = prompts

  def encode(self, text: str, **kwargs: Any) -> list[int]:
    return self.prompts[int(text)]

  def decode(self, ids: Any, **kwargs: Any) -> str:
    return ""

  def bos_id(self) -> int:
    return 0

  def eos_id(self) -> int:
    return 2

  def pad_id(self) -> int:
    return 0


def prepare(case: dict[str, Any]) -> tuple[Run, dict[str, Any]]:
  """Rows in static batches of `rows`, each until its longest is done."""
  shape, model = tunix_model.load(case["model"])
  rows = [i for i in range(len(case["prompts"])) for _ in range(case["n"])]
  limits = case["limits"]
  prompt = max(map(len, case["prompts"]))
  made = sampler.Sampler(
    model,
    Ids(case["prompts"]),
    sampler.CacheConfig(
      prompt + max(limits),
      shape.num_layers,
      shape.num_kv_heads,
      shape.head_dim,
    ),
  )

  def run(number: int) -> None:
    for at in range(0, len(rows), case["rows"]):
      chosen = rows[at : at + case["rows"]]
      found = made(
        [str(i) for i in chosen],
        max_generation_steps=max(limits[i] for i in chosen),
        max_prompt_length=prompt,
        temperature=1.0,
        top_p=1.0,
        top_k=None,
        eos_tokens=[-1],
        seed=number,
      )
      assert len(found.tokens) == len(chosen)

  return run, {"versions": tunix_model.versions()}


if __name__ == "__main__":
  serve(prepare)
