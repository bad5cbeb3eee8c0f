"""Hugging Face transformers' `generate`, a static batch of torch."""

import importlib.metadata
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from experiments.speed.contestants.loop import Run, serve


class Limits(transformers.StoppingCriteria):
  """Row b ends after its own number of new tokens."""

  def __init__(self, prompt: int, limits: list[int]):
    self.ends = torch.tensor(limits) + prompt

  def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
    del scores, kwargs
    return self.ends <= input_ids.shape[1]


def prepare(case: dict[str, Any]) -> tuple[Run, dict[str, Any]]:
  """Rows in static batches of `rows`, each until its longest is done."""
  torch.manual_seed(0)
  model = AutoModelForCausalLM.from_pretrained(
    case["model"], dtype=torch.float32
  ).eval()
  rows = [ids for ids in case["prompts"] for _ in range(case["n"])]
  limits = [size for size in case["limits"] for _ in range(case["n"])]
  width = case["rows"]

  def run(number: int) -> None:
    del number
    for at in range(0, len(rows), width):
      ids = torch.tensor(rows[at : at + width])
      stop = Limits(ids.shape[1], limits[at : at + width])
      with torch.inference_mode():
        made = model.generate(
          input_ids=ids,
          attention_mask=torch.ones_like(ids),
          do_sample=True,
          temperature=1.0,
          top_k=0,
          top_p=1.0,
          max_new_tokens=max(limits[at : at + width]),
          eos_token_id=None,
          pad_token_id=2,
          stopping_criteria=transformers.StoppingCriteriaList([stop]),
        )
      assert made.shape[1] == ids.shape[1] + max(limits[at : at + width])

  versions = {
    name: importlib.metadata.version(name) for name in ("torch", "transformers")
  }
  return run, {"versions": versions}


if __name__ == "__main__":
  serve(prepare)
