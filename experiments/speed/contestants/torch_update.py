"""A GRPO update as TRL makes it: torch, whole logits of the answer, AdamW.

The old logprobs are those of the forward pass itself, as in TRL with one
iteration a batch.
"""

import importlib.metadata
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from experiments.speed.contestants.loop import Run, serve


def chosen_logprobs(logits: Any, ids: Any) -> Any:
  """Of the chosen ids, the normalization made row by row."""
  chosen = logits.gather(-1, ids[..., None])[..., 0]
  return chosen - torch.stack([torch.logsumexp(row, -1) for row in logits])


def prepare(case: dict[str, Any]) -> tuple[Run, dict[str, Any]]:
  """One update over `tokens` [B, L], the last `new` of each row trained."""
  torch.manual_seed(0)
  model = AutoModelForCausalLM.from_pretrained(
    case["model"], dtype=torch.float32
  ).train()
  if case.get("remat"):
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.config.use_cache = False
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0)
  ids = torch.tensor(case["tokens"])
  gains = torch.tensor(case["advantages"])[:, None]
  new = case["new"]

  def run(number: int) -> dict[str, float]:
    del number
    made = model(
      input_ids=ids,
      attention_mask=torch.ones_like(ids),
      logits_to_keep=new + 1,
      use_cache=False,
    )
    found = chosen_logprobs(made.logits[:, :-1], ids[:, -new:])
    ratio = torch.exp(found - found.detach())
    gain = torch.min(ratio * gains, torch.clamp(ratio, 0.8, 1.2) * gains)
    loss = -gain.sum() / gain.numel()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return {"loss": loss.item(), "grad_norm": norm.item()}

  versions = {
    name: importlib.metadata.version(name) for name in ("torch", "transformers")
  }
  return run, {"versions": versions}


if __name__ == "__main__":
  serve(prepare)
