"""A decoder without a model: each reply is one text, or a random valid one."""

import random
import threading

import numpy as np
import tokenizers
import transformers

from varl_jax.models.tokenizer import Tokenizer
from varl_jax.sampling.local_chat import Drawn

TEMPLATE = (
  "{% for m in messages %}<turn>{{ m.role }}\n{{ m.content }}<end>{% endfor %}"
  "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)


def byte_tokenizer():
  """A token a byte, a few control tokens and a chat template."""
  made = tokenizers.Tokenizer(tokenizers.models.BPE())
  made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
    add_prefix_space=False
  )
  made.decoder = tokenizers.decoders.ByteLevel()
  made.train_from_iterator(
    ["the knot and then the rest, twice"] * 9,
    tokenizers.trainers.BpeTrainer(
      vocab_size=290,
      special_tokens=["<end>", "<turn>"],
      initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
      show_progress=False,
    ),
  )
  backend = transformers.PreTrainedTokenizerFast(
    tokenizer_object=made,
    eos_token="<end>",
    chat_template=TEMPLATE,
    clean_up_tokenization_spaces=False,
  )
  return Tokenizer(backend, vocab_size=made.get_vocab_size())


class ScriptedDecoder:
  """A `Decoder` whose jobs all get the same text, a token at a time.

  Jobs that are held to a schema get tokens drawn evenly among those allowed.
  """

  def __init__(self, tokenizer, text, *, fails_after=None):
    (self.stop,) = tokenizer.stop_ids
    self.script = [*tokenizer.encode(text), self.stop]
    self.words = -(-tokenizer.vocab_size // 32)
    self.fails_after = fails_after
    self.jobs = {}
    self.seeds = []
    self.prompts_read = 0
    self.paused = threading.Event()

  def add(self, jobs):
    self.prompts_read += 1
    for job in jobs:
      self.jobs[job] = (random.Random(job.seed), [])
      self.seeds.append(job.seed)

  def drop(self, job):
    self.jobs.pop(job, None)

  def advance(self):
    if self.fails_after is not None:
      self.fails_after -= 1
      if self.fails_after < 0:
        raise RuntimeError("device lost")
    if self.paused.is_set():
      threading.Event().wait(0.01)
    drawn = []
    for job, (rng, ids) in list(self.jobs.items()):
      token = self._next(job, rng, ids)
      ids.append(token)
      finish = None
      if token == self.stop:
        finish = "stop"
      elif len(ids) == job.limit:
        finish = "length"
      if finish:
        del self.jobs[job]
      drawn.append(
        Drawn(job=job, tokens=[token], logprobs=[-0.5], finish=finish)
      )
    return drawn

  def _next(self, job, rng, ids):
    if job.constraint is None:
      return self.script[len(ids)]
    mask = np.empty(self.words, np.uint32)
    job.constraint.fill(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    token = rng.choice(np.nonzero(bits)[0].tolist())
    if token != self.stop:
      job.constraint.advance(token)
    return token
