"""The BERT encoder against one written out in numpy, and its refusals."""

import json
import math

import numpy as np
import pytest

from tests.models import tiny_bert
from varl_jax.models.encoder import TextEncoder
from varl_jax.models.errors import ModelError

TEXTS = ("A knee that hurts", "fever", "gouty child " * 12, "")


def by_hand(tensors, ids, types, pooling="mean"):
  """One row of BertModel, from its definition, in float64."""
  get = {k.removeprefix("bert."): v.astype(float) for k, v in tensors.items()}

  def norm(x, name):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    return scaled * get[f"{name}.weight"] + get[f"{name}.bias"]

  def dense(x, name):
    return x @ get[f"{name}.weight"].T + get[f"{name}.bias"]

  x = get["embeddings.word_embeddings.weight"][ids]
  x = x + get["embeddings.position_embeddings.weight"][: len(ids)]
  x = x + get["embeddings.token_type_embeddings.weight"][types]
  x = norm(x, "embeddings.LayerNorm")
  heads = tiny_bert.CONFIG["num_attention_heads"]
  for layer in range(tiny_bert.CONFIG["num_hidden_layers"]):
    at = f"encoder.layer.{layer}"
    q, k, v = (
      dense(x, f"{at}.attention.self.{n}").reshape(len(ids), heads, -1)
      for n in ("query", "key", "value")
    )
    scores = np.einsum("lhd,mhd->hlm", q, k) / math.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("hlm,mhd->lhd", weights, v).reshape(x.shape)
    mixed = dense(mixed, f"{at}.attention.output.dense")
    x = norm(x + mixed, f"{at}.attention.output.LayerNorm")
    inner = dense(x, f"{at}.intermediate.dense")
    inner = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
    x = norm(x + dense(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm")
  found = x[0] if pooling == "cls" else x.mean(0)
  return found / np.linalg.norm(found)


def ids_of(text, longest):
  """The ids of a text of known words, by hand."""
  table = {w: i + 4 for i, w in enumerate(tiny_bert.WORDS)}
  ids = []
  for word in text.lower().split():
    if word in table:
      ids.append(table[word])
    else:
      ids += [table["gout"], table["##y"]]
  return [2, *ids[: longest - 2], 3]


@pytest.mark.parametrize("prefix", ["", "bert."])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_are_those_of_the_definition(tmp_path, prefix, pooling):
  tensors = tiny_bert.write(tmp_path, prefix=prefix)
  encoder = TextEncoder(tmp_path, pooling=pooling, max_length=20)
  found = encoder.encode(TEXTS)
  assert found.dtype == np.float32 and found.shape == (4, 24)
  for row, text in zip(found, TEXTS):
    ids = ids_of(text, 20)
    expected = by_hand(tensors, ids, [0] * len(ids), pooling)
    assert row == pytest.approx(expected, abs=2e-6)


def test_a_pair_is_two_segments(tmp_path):
  tensors = tiny_bert.write(tmp_path)
  [found] = TextEncoder(tmp_path).encode([("gout", "sore knee")])
  one, two = ids_of("gout", 48), ids_of("sore knee", 48)[1:]
  types = [0] * len(one) + [1] * len(two)
  assert found == pytest.approx(by_hand(tensors, one + two, types), abs=2e-6)


def test_a_text_is_the_same_in_any_company(tmp_path):
  tiny_bert.write(tmp_path)
  encoder = TextEncoder(tmp_path)
  many = [f"{'knee ' * (i % 30)}gout" for i in range(70)]
  together = encoder.encode(many)
  for place in (0, 7, 29, 64):
    alone = encoder.encode([many[place]])[0]
    assert together[place] == pytest.approx(alone, abs=2e-6)
  assert encoder.encode([]).shape == (0, 24)


def test_the_folder_says_pooling_and_length(tmp_path):
  tiny_bert.write(tmp_path / "plain")
  assert TextEncoder(tmp_path / "plain").pooling == "mean"
  assert TextEncoder(tmp_path / "plain").max_length == 48
  tiny_bert.write(
    tmp_path / "cls", pooling={"pooling_mode_cls_token": True}, max_length=30
  )
  encoder = TextEncoder(tmp_path / "cls")
  assert (encoder.pooling, encoder.max_length) == ("cls", 30)
  assert TextEncoder(tmp_path / "cls", pooling="mean").pooling == "mean"


def test_other_weights_have_another_digest(tmp_path):
  tiny_bert.write(tmp_path / "a", seed=0)
  tiny_bert.write(tmp_path / "b", seed=0)
  tiny_bert.write(tmp_path / "c", seed=1)
  a, b, c = (TextEncoder(tmp_path / n).digest for n in "abc")
  assert a == b != c


@pytest.mark.parametrize(
  ("changed", "message"),
  [
    ({"model_type": "roberta"}, "of the type roberta"),
    ({"position_embedding_type": "relative_key"}, "absolute"),
    ({"hidden_act": "silu"}, "activation silu"),
    ({"hidden_size": 30}, r"is \(.*\), config.json wants"),
    ({"num_hidden_layers": 3}, "lacks encoder.layer.2"),
  ],
)
def test_what_is_no_such_encoder_is_named(tmp_path, changed, message):
  tiny_bert.write(tmp_path, **changed)
  with pytest.raises(ModelError, match=message):
    TextEncoder(tmp_path)


def test_missing_and_damaged_files_are_named(tmp_path):
  tiny_bert.write(tmp_path)
  with pytest.raises(ModelError, match="of 99 tokens does not fit"):
    TextEncoder(tmp_path, max_length=99)
  with pytest.raises(ModelError, match="mean or cls, not 'max'"):
    TextEncoder(tmp_path, pooling="max")
  (tmp_path / "1_Pooling").mkdir()
  (tmp_path / "1_Pooling" / "config.json").write_text(
    json.dumps({"pooling_mode_max_tokens": True})
  )
  with pytest.raises(ModelError, match="pooling other than"):
    TextEncoder(tmp_path)
  for name in ("tokenizer.json", "model.safetensors", "config.json"):
    (tmp_path / name).rename(tmp_path / "away")
    with pytest.raises(ModelError, match=f"has no {name}"):
      TextEncoder(tmp_path, pooling="mean")
    (tmp_path / "away").rename(tmp_path / name)
  (tmp_path / "tokenizer.json").write_text("{")
  with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
    TextEncoder(tmp_path, pooling="mean")
