"""Untrusted text made harmless for a prompt, visibly and reversibly.

What a model, a passage or a user wrote is pasted into prompts that servers
render with a chat template and tokenize with its special tokens, so a text may
hold more than words. `neutralised` changes three things and nothing else:

- special tokens and tags of chat templates (`<|im_start|>`, `</think>`,
  `[INST]`, ...) get a middle dot after their first character, so that they are
  no tokens any more: `<·|im_start|>`;
- runs of three or more `<` or `>`, which delimit blocks, get dots in between;
- characters that show nothing and can hide or reorder text (bidirectional
  overrides, zero-width spaces, tags, control characters, lone surrogates) are
  spelled out: `⟦U+202E⟧`. Joiners, direction marks and soft hyphens stay,
  because scripts, emoji and web pages need them and they hide nothing.

Full-width forms, which some tokenizers fold into the plain ones, count like
them. A text that already looks neutralised gets one dot more, which is how
`restored` gives back exactly what went in.
"""

import re
from typing import Final

DOT: Final = "·"

_OPEN, _CLOSE, _BAR = "[<＜﹤]", "[>＞﹥]", "[|｜]"
# Tags that chat templates treat as tokens, apart from those of `<|...|>` form.
_TAGS: Final = (
  "think",
  "tool_call",
  "tool_response",
  "tool_calls",
  "tools",
  "s",
  "bos",
  "eos",
  "pad",
  "unk",
  "mask",
  "cls",
  "sep",
  "start_of_turn",
  "end_of_turn",
  "start_of_image",
  "end_of_image",
  "image_soft_token",
  "turn",
  "channel",
  "endoftext",
  "sop",
  "eop",
  "SYS",
)
_BRACKETED: Final = (
  "INST",
  "THINK",
  "SYSTEM_PROMPT",
  "TOOL_CALLS",
  "TOOL_CONTENT",
  "TOOL_RESULTS",
  "AVAILABLE_TOOLS",
  "ARGS",
  "CALL_ID",
  "IMG",
  "IMG_BREAK",
  "IMG_END",
  "gMASK",
  "CLS",
  "SEP",
  "MASK",
  "PAD",
  "UNK",
)
# What follows the dots; it holds neither a dot nor an opening bracket, so that
# putting a dot in changes no other match.
_REST = (
  rf"(?:{_BAR}|/?(?:{'|'.join(_TAGS)}){_BAR}?{_CLOSE})",
  rf"/?(?:{'|'.join(_BRACKETED)})\]",
)
_TOKEN = re.compile(rf"({_OPEN})(·*)(?={_REST[0]})|(\[)(·*)(?={_REST[1]})")
_TOKEN_DOTTED = re.compile(
  rf"({_OPEN})·(·*)(?={_REST[0]})|(\[)·(·*)(?={_REST[1]})"
)
_RUN = re.compile(rf"{_OPEN}(?:·*{_OPEN}){{2,}}|{_CLOSE}(?:·*{_CLOSE}){{2,}}")
_INSIDE = re.compile(r"([<＜﹤>＞﹥])(?=·*[<＜﹤>＞﹥])")
_INSIDE_DOTTED = re.compile(r"([<＜﹤>＞﹥])·(?=·*[<＜﹤>＞﹥])")
_HIDDEN = re.compile(
  "["
  "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u034f\u115f\u1160\u17b4\u17b5"
  "\u180b-\u180f\u200b\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff"
  "\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
  "\U000e0000-\U000e0fff"
  "]"
)
_SPELLED = re.compile(r"⟦(?=·*U\+[0-9A-F]{4,6}⟧)")
_SPELLED_DOTTED = re.compile(
  r"⟦(?:·(·*)(?=U\+[0-9A-F]{4,6}⟧)|U\+([0-9A-F]{4,6})⟧)"
)
# One class of characters is looked for much faster than the patterns.
_SUSPECT = re.compile(rf"[<＜﹤>＞﹥\[⟦{_HIDDEN.pattern[1:]}")


def neutralised(text: str) -> str:
  """`text` without anything that a prompt could mistake for its own parts."""
  if not _SUSPECT.search(text):
    return text
  text = _SPELLED.sub(f"⟦{DOT}", text)
  text = _HIDDEN.sub(lambda match: f"⟦U+{ord(match[0]):04X}⟧", text)
  text = _TOKEN.sub(_with_dot, text)
  return _RUN.sub(lambda run: _INSIDE.sub(rf"\1{DOT}", run[0]), text)


def restored(text: str) -> str:
  """What was given to `neutralised`; for texts that came out of it."""
  text = _RUN.sub(lambda run: _INSIDE_DOTTED.sub(r"\1", run[0]), text)
  text = _TOKEN_DOTTED.sub(_without_dot, text)
  return _SPELLED_DOTTED.sub(_unspelled, text)


def _with_dot(match: re.Match[str]) -> str:
  bracket, dots = match[1] or match[3], match[2] or match[4] or ""
  return f"{bracket}{DOT}{dots}"


def _without_dot(match: re.Match[str]) -> str:
  return (match[1] or match[3]) + (match[2] or match[4] or "")


def _unspelled(match: re.Match[str]) -> str:
  return chr(int(match[2], 16)) if match[2] else f"⟦{match[1]}"
