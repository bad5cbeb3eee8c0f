"""Our encoder beside transformers' BertModel; skipped without torch."""

import numpy as np
import pytest

from tests.models import tiny_bert
from varl_jax.models.encoder import TextEncoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TEXTS = ("A knee that hurts", "fever", "gouty child " * 9, "the and of")


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "relu"])
def test_vectors_are_those_of_transformers(tmp_path, act):
  tiny_bert.write(tmp_path, hidden_act=act)
  theirs = transformers.BertModel.from_pretrained(tmp_path).eval()
  encoder = TextEncoder(tmp_path)
  rows = [encoder._tokenizer.encode(text) for text in TEXTS]
  longest = max(len(row.ids) for row in rows)
  ids = torch.tensor([r.ids + [0] * (longest - len(r.ids)) for r in rows])
  mask = torch.tensor(
    [[1] * len(r.ids) + [0] * (longest - len(r.ids)) for r in rows]
  )
  with torch.no_grad():
    tokens = theirs(input_ids=ids, attention_mask=mask).last_hidden_state
  for pooling in ("mean", "cls"):
    weights = mask[..., None].float()
    found = tokens[:, 0]
    if pooling == "mean":
      found = (tokens * weights).sum(1) / weights.sum(1)
    expected = torch.nn.functional.normalize(found, dim=-1).numpy()
    ours = TextEncoder(tmp_path, pooling=pooling).encode(TEXTS)
    assert np.abs(ours - expected).max() < 2e-6
