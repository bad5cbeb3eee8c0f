r"""Draws replies of every role from SmolLM2, held to their schemas.

    python -m experiments.held_replies --replies=500 \
        --out=experiments/results/held_replies.json

Each reply is read as its role reads it. Counts those that can be read, and the
share of the time that masks took: their making on the host, not their use on
the device. Needs the extras `smollm2` and `constrained`.
"""

import collections
import importlib
import json
import pathlib
import pkgutil
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from absl import app, flags

from varl_jax import build, roles
from varl_jax.llm.chat import ChatError
from varl_jax.llm.json_reply import ReplyFormat
from varl_jax.local_models import load_local
from varl_jax.sampling.constrained import (
  Constraint,
  Grammars,
  whole_numbers,
)
from varl_jax.sampling.local_chat import Job
from varl_jax.sampling.slot_decoder import SlotDecoder
from varl_jax.types import Message

_REPLIES = flags.DEFINE_integer("replies", 500, "Replies to draw.", 1)
_SLOTS = flags.DEFINE_integer("slots", 32, "Of them at a time.", 1)
_LIMIT = flags.DEFINE_integer("limit", 768, "Most tokens of a reply.", 32)
_OUT = flags.DEFINE_string("out", "", "JSON to write.")
TOPICS: Final = ("tides", "a budget", "bread", "a lease", "fever", "knots")


class Timed:
  """A `Constraint` that adds up what it takes, in seconds."""

  def __init__(self, inner: Constraint, spent: collections.Counter[str]):
    self._inner = inner
    self._spent = spent

  def fill(self, out: np.ndarray) -> None:
    begun = time.perf_counter()
    self._inner.fill(out)
    self._spent["masks"] += time.perf_counter() - begun  # pyright: ignore

  def advance(self, token: int) -> None:
    begun = time.perf_counter()
    self._inner.advance(token)
    self._spent["masks"] += time.perf_counter() - begun  # pyright: ignore


def role_forms() -> dict[str, ReplyFormat]:
  """The reply formats of all roles, by module."""
  found = {}
  for module in pkgutil.iter_modules(roles.__path__):
    held = vars(importlib.import_module(f"{roles.__name__}.{module.name}"))
    for value in held.values():
      if isinstance(value, ReplyFormat):
        found[module.name] = value
  return found


def measure(count: int, *, slots: int, limit: int) -> Mapping[str, Any]:
  """Draws and reads `count` replies."""
  build.use_compile_cache()
  loaded = load_local("smollm2")
  tokenizer = loaded.tokenizer
  grammars = Grammars(
    tokenizer.backend.backend_tokenizer.to_str(),
    vocab_size=loaded.model.config.vocab_size,
    stop_ids=tokenizer.stop_ids,
  )
  decoder = SlotDecoder(
    model=loaded.model,
    params=loaded.params,
    stop_ids=tokenizer.stop_ids,
    forbidden_ids=tokenizer.forbidden_ids,
    slots=slots,
    max_prompt=128,
    max_new=limit,
  )
  forms = list(role_forms().items())
  spent: collections.Counter[str] = collections.Counter()
  asked: dict[Job, str] = {}
  for number in range(count):
    name, form = forms[number % len(forms)]
    turn = Message(
      role="user",
      content=f"Fill in the form of a {name} about {TOPICS[number % 6]}.",
    )
    state = grammars.start(whole_numbers(form.schema), room=limit - 1)
    job = Job(
      prompt=tuple(tokenizer.encode_chat([turn])),
      limit=limit,
      temperature=1.0,
      seed=number,
      constraint=Timed(state, spent),  # pyright: ignore
    )
    asked[job] = name
    decoder.add([job])
  tokens: dict[Job, list[int]] = {job: [] for job in asked}
  failed: list[str] = []
  drawn_tokens, left = 0, count
  begun = time.perf_counter()
  while left:
    for piece in decoder.advance():
      tokens[piece.job] += piece.tokens
      drawn_tokens += len(piece.tokens)
      if piece.finish is None:
        continue
      left -= 1
      name = asked[piece.job]
      text = tokenizer.decode(
        [t for t in tokens[piece.job] if t not in tokenizer.stop_ids]
      )
      try:
        dict(forms)[name].parse(text, finish=piece.finish)
      except ChatError as error:
        failed.append(f"{name}: {error}")
    print(f"\r{count - left} of {count}", end="", flush=True)
  seconds = time.perf_counter() - begun
  print()
  return {
    "replies": count,
    "roles": len(forms),
    "read": count - len(failed),
    "failed": failed[:20],
    "tokens": drawn_tokens,
    "seconds": seconds,
    "tokens_per_s": drawn_tokens / seconds,
    "mask_share": spent["masks"] / seconds,
    "slots": slots,
    "limit": limit,
  }


def main(argv: list[str]) -> None:
  """Measures as the flags say."""
  del argv
  found = measure(_REPLIES.value, slots=_SLOTS.value, limit=_LIMIT.value)
  text = json.dumps(found, indent=1)
  print(text)
  if _OUT.value:
    pathlib.Path(_OUT.value).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
  app.run(main)
