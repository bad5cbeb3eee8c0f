"""What is drawn in slots does not depend on the slots."""

import functools
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from varl_jax.models.llama import LlamaConfig
from varl_jax.models.qwen3_5_shape import Qwen35Config
from varl_jax.models.registry import make_model
from varl_jax.rl.logprobs import forbidden_mask, token_logprobs
from varl_jax.sampling import slots
from varl_jax.sampling.sampler import Sampler
from varl_jax.sampling.slot_programs import SlotPrograms, packed
from varl_jax.sampling.slots import Request, Slots

STOP, FORBIDDEN, VOCAB, LIMIT = 1, (0, 2, 17), 19, 12
CONFIGS = {
  "llama": LlamaConfig(
    vocab_size=VOCAB,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    tie_embeddings=True,
    max_position=64,
  ),
  "qwen3_5": Qwen35Config(
    vocab_size=VOCAB,
    hidden_size=16,
    intermediate_size=24,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rotary_dim=4,
    delta_k_heads=2,
    delta_v_heads=4,
    delta_k_dim=8,
    delta_v_dim=8,
    rms_eps=0.1,
    max_position=64,
  ),
}
NAMES = sorted(CONFIGS)
# Lanes and slots a lane; all answers at once, and one after another.
WIDE, NARROW = (4, 2), (2, 1)


@functools.cache
def model_of(name):
  return make_model(CONFIGS[name])


@functools.cache
def params_of(name, seed=0):
  shapes = jax.eval_shape(
    model_of(name).init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32)
  )
  rng = np.random.default_rng(seed)
  center = name == "llama"
  return jax.tree.map(
    lambda x: jnp.asarray(
      rng.normal(center and x.ndim == 1, 0.5, x.shape), jnp.float32
    ),
    shapes,
  )


@functools.cache
def programs_of(name):
  return SlotPrograms(
    model=model_of(name), stop_ids=(STOP,), forbidden_ids=FORBIDDEN, segment=5
  )


def make_slots(name="llama", shape=WIDE, params=None):
  return Slots(
    programs_of(name),
    params_of(name) if params is None else params,
    lanes=shape[0],
    width=shape[1],
    max_prompt=16,
    max_new=LIMIT,
  )


def make_requests(count=4, **changes):
  """Prompts of different lengths, each with a number of its own."""
  rng = np.random.default_rng(2)
  made = []
  for number in range(count):
    prompt = rng.integers(3, 17, rng.integers(1, 16)).tolist()
    fields = {"count": 2, "seed": 3, "step": 5, "task": 100 + number}
    fields |= {"limit": LIMIT - number % 3, "tag": number}
    made.append(Request(prompt=prompt, **(fields | changes)))
  return made


def run(drawing, found=None):
  found = {} if found is None else found
  while not drawing.idle():
    collect(drawing, found)
  return found


def collect(drawing, found):
  for done in drawing.step():
    key = done.request.tag, done.index
    assert key not in found
    found[key] = done.sample


def tokens_of(found):
  return {key: sample.tokens for key, sample in found.items()}


def draw(requests, name="llama", shape=WIDE, params=None):
  drawing = make_slots(name, shape, params)
  for request in requests:
    drawing.submit(request)
  found = run(drawing)
  assert drawing.prefilled == len(requests)
  return found


@functools.cache
def expected(name):
  return draw(make_requests(), name)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_do_not_depend_on_slots_order_or_arrival(name):
  whole = expected(name)
  assert len(whole) == 8
  assert len({sample.tokens for sample in whole.values()}) > 4
  # Later answers find a slot that an earlier one has left.
  few = draw(make_requests()[::-1], name, NARROW)
  assert tokens_of(few) == tokens_of(whole)
  late, found = make_slots(name, NARROW), {}
  for request in make_requests():
    late.submit(request)
    collect(late, found)
  assert tokens_of(run(late, found)) == tokens_of(whole)
  for key, sample in whole.items():
    np.testing.assert_allclose(found[key].logprobs, sample.logprobs, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_logprobs_are_those_of_a_full_forward(name):
  requests, model = make_requests(), model_of(name)
  tokens, lengths = np.zeros((8, 32), np.int32), np.zeros(8, np.int32)
  found = [expected(name)[key] for key in sorted(expected(name))]
  for row, sample in enumerate(found):
    ids = (*requests[row // 2].prompt, *sample.tokens)
    tokens[row, : len(ids)], lengths[row] = ids, len(ids)

  @jax.jit
  def forward(params):
    return token_logprobs(
      model.hidden(params, tokens, lengths)[:, :-1],
      model.lm_head_weight(params),
      tokens[:, 1:],
      forbidden=jnp.asarray(forbidden_mask(FORBIDDEN, VOCAB)),
    )[0]

  full = np.asarray(forward(params_of(name)))
  for row, sample in enumerate(found):
    end = lengths[row] - 1
    ours = full[row, end - len(sample.tokens) : end]
    np.testing.assert_allclose(sample.logprobs, ours, atol=1e-4)
  ends = {(s.finish, s.tokens[-1] == STOP) for s in found}
  assert ends <= {("stop", True), ("length", False)}


@pytest.mark.parametrize("name", NAMES)
def test_fewer_slots_towards_the_end_change_nothing(name, monkeypatch):
  monkeypatch.setattr(slots, "FEWEST_ROWS", 2)
  drawing, found, sizes = make_slots(name), {}, set()
  for request in make_requests():
    drawing.submit(request)
  while not drawing.idle():
    collect(drawing, found)
    drawing.compact()
    sizes.add(drawing.shape)
  assert sizes == {WIDE, NARROW}
  assert tokens_of(found) == tokens_of(expected(name))


def test_weights_that_change_in_place_are_told_a_token():
  old, new = params_of("llama"), params_of("llama", 1)
  drawing, found = make_slots(shape=NARROW), {}
  for request in make_requests(stop_ids=()):
    drawing.submit(request)
  collect(drawing, found)
  drawing.update(new, 1, drain=False)
  run(drawing, found)
  mixed = [s for s in found.values() if set(s.versions) == {0, 1}]
  assert mixed
  before = draw(make_requests(), params=old)
  for key, sample in found.items():
    assert len(sample.versions) == len(sample.tokens)
    assert list(sample.versions) == sorted(sample.versions)
    kept = sample.versions.count(0)
    assert sample.tokens[:kept] == before[key].tokens[:kept]
  assert any(
    s.versions[-1] == 1 and s.tokens != before[key].tokens
    for key, s in found.items()
  )


def test_drained_slots_change_weights_between_prompts():
  old, new = params_of("llama"), params_of("llama", 1)
  drawing, found = make_slots(shape=NARROW), {}
  for request in make_requests():
    drawing.submit(request)
  collect(drawing, found)
  drawing.update(new, 1, drain=True)
  run(drawing, found)
  by_version = [draw(make_requests(), params=p) for p in (old, new)]
  seen = set()
  for key, sample in found.items():
    (version,) = set(sample.versions)
    assert sample.tokens == by_version[version][key].tokens
    seen.add((key[0], version))
  # All answers to a prompt are by the same weights, and both had some.
  assert len(seen) == 4
  assert {version for _, version in seen} == {0, 1}


def test_requests_with_settings_of_their_own_share_slots():
  allowed = np.isin(np.arange(VOCAB), (4, 5))
  asked = []

  def mask(index, tokens):
    assert index == 0
    asked.append(len(tokens))
    return packed(allowed)

  plain = make_requests()
  special = [
    Request(prompt=[3, 4], limit=6, mask=mask, tag="mask"),
    Request(prompt=[3, 4], limit=6, temperature=0.0, least=6, tag="greedy"),
    Request(prompt=[3, 4], limit=9, stop_ids=(5, 6, 7, 8), tag="stops"),
    Request(prompt=[3, 4], limit=9, count=2, least=9, tag="least"),
  ]
  found = draw([*special[:2], *plain, *special[2:]])
  others = {key: s for key, s in found.items() if isinstance(key[0], int)}
  assert tokens_of(others) == tokens_of(expected("llama"))
  constrained = found["mask", 0]
  assert asked == list(range(len(constrained.tokens)))
  assert set(constrained.tokens) <= {4, 5}
  assert not set(found["stops", 0].tokens[:-1]) & {5, 6, 7, 8, STOP}
  for index in range(2):
    assert len(found["least", index].tokens) == 9
    assert found["least", index].finish == "length"
  model, params, ids = model_of("llama"), params_of("llama"), [3, 4]
  head = model.lm_head_weight(params)
  barred = forbidden_mask((*FORBIDDEN, STOP), VOCAB)
  for token in found["greedy", 0].tokens:
    hidden = model.hidden(params, jnp.array([ids + [0] * (8 - len(ids))]))
    logits = np.where(barred, -np.inf, hidden[0, len(ids) - 1] @ head.T)
    assert token == logits.argmax()
    ids.append(token)


def test_refused_requests():
  drawing = make_slots()
  for changes, words in (
    ({"prompt": []}, "0 tokens"),
    ({"prompt": [5] * 17}, "take 1 to 16"),
    ({"limit": 13}, "between 1 and 12"),
    ({"count": 0}, "count is at least 1"),
    ({"stop_ids": range(5)}, "at most 4 stop ids"),
  ):
    fields = {"prompt": [5], "limit": 2} | changes
    with pytest.raises(ValueError, match=words):
      drawing.submit(Request(**fields))
  assert drawing.idle()


def draw_many(sampler, lengths, step):
  rng = np.random.default_rng(step)
  prompts = [rng.integers(3, 17, length).tolist() for length in lengths]
  seen = {}
  groups = sampler.generate(
    prompts,
    2,
    params=params_of("llama"),
    step=step,
    tasks=range(4),
    on_sample=lambda row, index, sample: seen.update({(row, index): sample}),
  )
  flat = {(r, i): s for r, g in enumerate(groups) for i, s in enumerate(g)}
  assert seen == flat
  assert {v for s in flat.values() for v in s.versions} == {step}
  return flat


def make_sampler():
  return Sampler(
    model=model_of("llama"),
    stop_ids=(STOP,),
    forbidden_ids=FORBIDDEN,
    max_prompt=32,
    max_new=6,
  )


def test_nothing_compiles_again_in_fifty_batches_of_varied_lengths():
  sampler = make_sampler()
  for long in range(5):
    draw_many(sampler, [20] * long + [10] * (4 - long), 0)
  warm, rng = sampler.compile_count(), np.random.default_rng(0)
  for step in range(50):
    draw_many(sampler, rng.integers(1, 33, 4), step)
  assert sampler.compile_count() == warm


@pytest.mark.slow
def test_memory_stays_flat_over_fifty_batches():
  sampler, rng, held = make_sampler(), np.random.default_rng(0), []
  for step in range(55):
    draw_many(sampler, rng.integers(1, 33, 4), step)
    gc.collect()
    held.append((len(jax.live_arrays()), resident()))
  counts, pages = zip(*held[5:], strict=True)
  assert len(set(counts)) == 1
  assert max(pages[-10:]) - pages[0] < 20 * 2**20


def resident():
  """Bytes of this process in memory."""
  with open("/proc/self/statm") as file:
    return int(file.read().split()[1]) * 4096
