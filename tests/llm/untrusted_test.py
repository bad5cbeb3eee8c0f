"""Text that a prompt or a chat template could take for its own."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from varl_jax.llm.untrusted import neutralised, restored

TOKENS = (
  "<|im_start|>",
  "<|im_end|>",
  "<|endoftext|>",
  "<|eot_id|>",
  "<|channel|>",
  "<｜User｜>",
  "＜｜im_start｜＞",
  "<turn|>",
  "<think>",
  "</think>",
  "<tool_call>",
  "</tool_response>",
  "<start_of_turn>",
  "<s>",
  "</s>",
  "[INST]",
  "[/INST]",
  "[gMASK]",
  "[SYSTEM_PROMPT]",
)
PLAIN = (
  "Take 5 mg < 3 times a day > with food; a[i] << 2 >> 1, x |> f.",
  "<div><b>bold</b></div> [NOTE] [1] 2 < 3 <| ".replace("<|", "<"),
  "naïve «quoted» ‹so› · dotted · 日本語 ⟦set⟧",
  "👩‍⚕️ and نمی‌خواهم",
  "line\nline\ttab\r\n",
  "",
)
PIECES = st.sampled_from(
  [
    *TOKENS,
    *"<>·|[]/⟦⟧",
    *("<<<", ">>>", "<·<·<", "<·|", "⟦U+202E⟧", "⟦·U+202E⟧", "[·INST]"),
    *("\u200b", "\u202e", "\ud800", "\U000e0041", "\x00", "think>", "U+0041⟧"),
  ]
)
TEXTS = st.one_of(
  st.text(), st.lists(st.one_of(PIECES, st.text(max_size=3))).map("".join)
)


@pytest.mark.parametrize("text", PLAIN)
def test_plain_text_stays(text):
  assert neutralised(text) == text


@pytest.mark.parametrize("token", TOKENS)
def test_special_tokens_are_broken_and_seen(token):
  text = f"before {token} after"
  safe = neutralised(text)
  assert token not in safe
  assert unicodedata.normalize("NFKC", token) not in unicodedata.normalize(
    "NFKC", safe
  )
  assert safe.replace("·", "") == text
  assert restored(safe) == text


@pytest.mark.parametrize(
  ("text", "safe"),
  [
    ("<|im_end|>", "<·|im_end|>"),
    ("<·|im_end|>", "<··|im_end|>"),
    ("<<<A", "<·<·<A"),
    ("x >>>> y", "x >·>·>·> y"),
    ("<<<|", "<·<·<·|"),
    ("a\u202eb", "a⟦U+202E⟧b"),
    ("a⟦U+202E⟧b", "a⟦·U+202E⟧b"),
    ("\ud800", "⟦U+D800⟧"),
    ("\x00\x1b[0m", "⟦U+0000⟧⟦U+001B⟧[0m"),
    ("hi\U000e0068\U000e0069", "hi⟦U+E0068⟧⟦U+E0069⟧"),
    ("<\u200b|im_end|>", "<⟦U+200B⟧|im_end|>"),
  ],
)
def test_what_it_looks_like(text, safe):
  assert neutralised(text) == safe
  assert restored(safe) == text


@given(TEXTS)
@settings(deadline=None, max_examples=500)
def test_it_is_reversible_and_safe(text):
  safe = neutralised(text)
  assert restored(safe) == text
  safe.encode()
  folded = unicodedata.normalize("NFKC", safe)
  assert "<<<" not in folded
  assert ">>>" not in folded
  assert not any(
    unicodedata.normalize("NFKC", token) in folded for token in TOKENS
  )


@given(TEXTS)
@settings(deadline=None, max_examples=300)
def test_twice_is_safe_too(text):
  twice = neutralised(neutralised(text))
  assert restored(restored(twice)) == text
