import pytest
import tokenizers
import transformers

from varl_jax.models import loading, tokenizer
from varl_jax.models.errors import ModelError
from varl_jax.types import Message

TEMPLATE = (
  "{% for m in messages %}{{ m.role }} {{ m.content }} <eos> {% endfor %}"
  "{% if add_generation_prompt %}assistant{% endif %}"
)
WORDS = ["<pad>", "<bos>", "<eos>", "<unk>", "user", "assistant", "a", "cat"]
STRINGS = [
  "Hello, world! It's a test.",
  "The year 1984, or 3.14159 and 007.",
  "tabs\tand\nnewlines\n\n  two spaces",
  "Ünïcödé, 日本語, emoji 🙂👩‍👩‍👧",
  "def f(x):\n    return x ** 2\n",
  "",
  " leading and trailing ",
  "<|im_start|>user\nhi<|im_end|>\n",
]


def word_tokenizer(**options):
  rust = tokenizers.Tokenizer(
    tokenizers.models.WordLevel(
      {word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"
    )
  )
  rust.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  names = {"eos_token": "<eos>", "pad_token": "<pad>", "bos_token": "<bos>"}
  return transformers.PreTrainedTokenizerFast(
    tokenizer_object=rust,
    unk_token="<unk>",
    chat_template=TEMPLATE,
    **(names | options),
  )


def test_chat_opens_the_answer_and_adds_nothing_else():
  made = tokenizer.Tokenizer(word_tokenizer(), vocab_size=8)
  ids = made.encode_chat([Message(role="user", content="a cat")])
  assert ids == [4, 6, 7, 2, 5]
  assert made.encode("a cat") == [6, 7]
  assert made.decode([6, 7, 2, 0]) == "a cat"


def test_stop_and_forbidden_ids():
  made = tokenizer.Tokenizer(word_tokenizer(), vocab_size=10, stop_ids=[5])
  assert made.stop_ids == {2, 5}
  assert made.forbidden_ids == {0, 1, 3, 8, 9}
  assert made.pad_id == 0
  assert made.vocab_size == 10


def test_a_pad_that_is_the_eos_stays_samplable():
  made = tokenizer.Tokenizer(word_tokenizer(pad_token="<eos>"), vocab_size=8)
  assert made.pad_id == 2
  assert 2 in made.stop_ids
  assert 2 not in made.forbidden_ids


def test_refusals():
  with pytest.raises(ModelError, match="end-of-sequence"):
    tokenizer.Tokenizer(word_tokenizer(eos_token=None), vocab_size=8)
  with pytest.raises(ModelError, match="head has 5 rows"):
    tokenizer.Tokenizer(word_tokenizer(), vocab_size=5)
  backend = word_tokenizer()
  backend.chat_template = "{{ raise_exception('users only') }}"
  made = tokenizer.Tokenizer(backend, vocab_size=8)
  with pytest.raises(ModelError, match="users only"):
    made.encode_chat([Message(role="user", content="a")])
  backend.chat_template = None
  with pytest.raises(ModelError, match="no chat template"):
    made.encode_chat([Message(role="user", content="a")])


def test_save_and_read_again(tmp_path):
  made = tokenizer.Tokenizer(word_tokenizer(), vocab_size=8)
  made.save(tmp_path)
  again = tokenizer.from_folder(tmp_path, vocab_size=8)
  turns = [Message(role="user", content="cat a")]
  assert again.encode_chat(turns) == made.encode_chat(turns)
  assert again.forbidden_ids == made.forbidden_ids
  assert again.decode([7, 6, 2]) == "cat a"


def test_folders_that_cannot_be_read(tmp_path):
  with pytest.raises(ModelError, match=r"no tokenizer\.json"):
    tokenizer.from_folder(tmp_path, vocab_size=8)
  (tmp_path / "tokenizer.json").write_text("{}")
  (tmp_path / "tokenizer_config.json").write_text("{}")
  with pytest.raises(ModelError, match="cannot be read"):
    tokenizer.from_folder(tmp_path, vocab_size=8)


def test_gguf_of_another_kind_is_refused():
  fields = {"tokenizer.ggml.model": "llama"}
  with pytest.raises(ModelError, match="not supported"):
    tokenizer.from_gguf(fields, vocab_size=8)
  fields = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
  with pytest.raises(ModelError, match=r"no tokenizer\.ggml\.tokens"):
    tokenizer.from_gguf(fields, vocab_size=8)


def test_smollm2_round_trip_and_digits(smollm2):
  made = smollm2[2]
  for text in STRINGS[:-1]:
    assert made.decode(made.encode(text)) == text
  assert len(made.encode("1984")) == 4
  # Digits are cut off before the spaces are merged.
  assert made.encode("   7") == [*made.encode("   "), *made.encode("7")]
  assert made.stop_ids == {2}
  assert made.forbidden_ids == set(range(17)) - {2}


def test_smollm2_equals_transformers(smollm2):
  pytest.importorskip("torch")  # transformers wants it to read GGUF files
  made = smollm2[2]
  path = loading.smollm2_file()
  theirs = transformers.AutoTokenizer.from_pretrained(
    path.parent, gguf_file=path.name
  )
  for text in STRINGS:
    assert made.encode(text) == theirs.encode(text, add_special_tokens=False)
  turns = [
    Message(role="system", content="Be brief."),
    Message(role="user", content="Name 3 rivers."),
  ]
  expected = theirs.apply_chat_template(
    [{"role": m.role, "content": m.content} for m in turns],
    add_generation_prompt=True,
    return_dict=False,
  )
  assert made.encode_chat(turns) == expected
