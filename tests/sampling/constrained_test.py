"""What a schema lets through, against the reader of replies and by hand."""

import importlib
import json

import numpy as np
import pytest
import tokenizers

from tests.injection import role_calls
from varl_jax.llm.json_reply import parse_json_reply
from varl_jax.sampling import constrained

ROOM = 600
STOP = 0


def schemas():
  """The form of each role's reply."""
  found = {}
  for name in role_calls.NAMES:
    chat, _ = role_calls.send(name, "x")
    for request in chat.requests:
      if request.schema is not None:
        found[name] = request.schema
  return found


SCHEMAS = schemas()


@pytest.fixture(scope="module")
def tokenizer():
  """Bytes and what is common in JSON, with a stop token in front."""
  made = tokenizers.Tokenizer(tokenizers.models.BPE())
  made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
    add_prefix_space=False
  )
  made.decoder = tokenizers.decoders.ByteLevel()
  texts = [json.dumps(reply) for reply in role_calls.REPLIES.values()]
  made.train_from_iterator(
    [*texts, '{"a":"b","c":-12,"d":[true,null]}'] * 5,
    tokenizers.trainers.BpeTrainer(
      vocab_size=400,
      special_tokens=["<stop>"],
      initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
      show_progress=False,
    ),
  )
  return made


@pytest.fixture(scope="module")
def grammars(tokenizer):
  # The head of a model may have more rows than its tokenizer has tokens.
  return constrained.Grammars(
    tokenizer.to_str(),
    vocab_size=tokenizer.get_vocab_size() + 29,
    stop_ids=[STOP],
  )


def allowed(grammars, state):
  out = np.empty(grammars.words, np.uint32)
  state.fill(out)
  bits = np.unpackbits(out.view(np.uint8), bitorder="little")
  assert not bits[grammars.vocab_size :].any()
  return np.nonzero(bits[: grammars.vocab_size])[0]


def draw(grammars, schema, rng, *, room=ROOM, look=lambda state: None):
  """A reply of evenly drawn tokens, as (ids, its state)."""
  state, ids = grammars.start(schema, room=room), []
  while not state.ended:
    look(state)
    token = int(rng.choice(allowed(grammars, state)))
    if token == STOP:
      break
    state.advance(token)
    ids.append(token)
  return ids, state


@pytest.mark.parametrize("name", SCHEMAS)
def test_any_reply_is_read_by_its_role(name, grammars, tokenizer):
  schema = constrained.whole_numbers(SCHEMAS[name])
  rng = np.random.default_rng(0)
  for _ in range(3):
    ids, state = draw(grammars, schema, rng)
    assert state.complete and len(ids) <= 4 * ROOM
    text = tokenizer.decode(ids)
    value = parse_json_reply(text, SCHEMAS[name], finish="stop")
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert text.replace(":-0", ":0") == written


@pytest.mark.parametrize("name", ["generator", "judge", "referee"])
def test_masks_hold_what_the_grammar_takes(name, grammars, tokenizer):
  """All of it, but where one spelling is forced: there its usual tokens."""
  rng = np.random.default_rng(1)
  compared = forced = 0

  def look(state):
    nonlocal compared, forced
    here = set(allowed(grammars, state).tolist())
    taken = {STOP} if state.complete else set()
    for token in range(1, tokenizer.get_vocab_size()):
      if state._matcher.deep_copy().try_consume_tokens([token]) == 1:
        taken.add(token)
    assert here and here <= taken
    if len(here) > 1:
      assert here == taken
    compared += len(here) > 1
    forced += len(here) == 1

  draw(grammars, SCHEMAS[name], rng, room=200, look=look)
  assert compared > 5 and forced > 3


def test_what_may_come_by_hand(grammars, tokenizer):
  letters = tokenizer.get_vocab()
  state = grammars.start({"enum": ["year", "no"]})
  for letter, after in (('"', {"y", "n", "no", "ye", "year"}), ("n", {"o"})):
    state.advance(letters[letter])
    names = {tokenizer.id_to_token(t) for t in allowed(grammars, state)}
    assert names == after & set(letters)
  state.advance(letters["o"])
  state.advance(letters['"'])
  assert state.complete and state.ended
  assert allowed(grammars, state).tolist() == [STOP]


def test_a_token_that_was_masked_out_is_an_error(grammars, tokenizer):
  state = grammars.start({"type": "boolean"})
  with pytest.raises(constrained.ConstraintError, match="breaks the schema"):
    state.advance(tokenizer.get_vocab()["x"])


@pytest.mark.parametrize(
  ("schema", "room", "expected"),
  [
    ({"type": "string"}, 50, {"maxLength": 48}),
    ({"type": "string", "maxLength": 9}, 50, {"maxLength": 9}),
    ({"type": "string", "minLength": 70}, 50, {"maxLength": 70}),
    ({"type": "string", "enum": ["a"]}, 5, {}),
    ({"type": "array", "items": {"type": "boolean"}}, 100, {"maxItems": 7}),
    ({"type": "array", "items": {}, "minItems": 3}, 100, {"maxItems": 3}),
    ({"type": "array", "items": {}, "maxItems": 0}, 100, {"maxItems": 0}),
    ({"type": "array", "items": {}}, 10**6, {"maxItems": 32}),
    ({"type": "integer"}, 5, {"minimum": -(10**6), "maximum": 10**6}),
    (
      {"type": "integer", "minimum": 5},
      5,
      {"minimum": 5, "maximum": 10**6 + 5},
    ),
    (
      {"type": "number", "minimum": 0},
      5,
      {"minimum": 0, "maximum": 10**6, "multipleOf": 0.001},
    ),
  ],
)
def test_what_is_open_gets_an_end(schema, room, expected):
  found = constrained.bounded(schema, room)
  assert {k: v for k, v in found.items() if schema.get(k) != v} == {
    k: v for k, v in expected.items() if schema.get(k) != v
  } | (
    {"items": found["items"]}
    if found.get("items") != schema.get("items")
    else {}
  )


def test_fields_share_the_room(grammars):
  text = {"type": "string"}
  schema = {
    "type": "object",
    "properties": {"ab": text, "cd": text, "n": {"type": "integer"}},
  }
  found = constrained.bounded(schema, 100)["properties"]
  # Braces 2, keys 3 x 4 + 5 letters, the number 12: 69 are left for two.
  assert found["ab"]["maxLength"] == found["cd"]["maxLength"] == 34 - 2
  assert schema["properties"]["ab"] == {"type": "string"}


@pytest.mark.parametrize(
  "schema",
  [
    {"type": "string", "minLength": 5, "maxLength": 2},
    {"type": "nonsense"},
    {"type": "string", "pattern": "("},
  ],
)
def test_a_schema_that_cannot_be_held_is_named(schema, grammars):
  with pytest.raises(constrained.ConstraintError) as caught:
    grammars.start(schema)
  assert "cannot be held to" in str(caught.value)
  assert "\n" not in str(caught.value)


def test_without_the_package_its_extra_is_named(monkeypatch):
  def missing(name):
    raise ModuleNotFoundError(name)

  monkeypatch.setattr(importlib, "import_module", missing)
  with pytest.raises(ModuleNotFoundError, match=r"varl_jax\[constrained\]"):
    constrained.Grammars("{}", vocab_size=3, stop_ids=[0])
