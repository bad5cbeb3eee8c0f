"""Delimited blocks for untrusted text inside prompts.

A block looks like

    <<<ANSWER 5f0c2a91be44>>>
    ...
    <<<END ANSWER 5f0c2a91be44>>>

The mark is a keyed hash of the name and the text, so the text cannot contain
its own closing line, and look-alike brackets in it are replaced on top.
"""

import hashlib
import re

_OPEN = re.compile(r"^<<<([A-Z][A-Z_ 0-9]*) ([0-9a-f]{12})>>>$", re.M)


def block(name: str, text: str) -> str:
  """Wraps `text` as a block; `name` is upper case."""
  safe = text.replace("<<<", "‹‹‹").replace(">>>", "›››")
  mark = hashlib.sha256(f"varl_jax\0{name}\0{safe}".encode()).hexdigest()[:12]
  return f"<<<{name} {mark}>>>\n{safe}\n<<<END {name} {mark}>>>"


def read_blocks(text: str) -> list[tuple[str, str]]:
  """Lists the (name, text) of every complete block, in order."""
  found = []
  position = 0
  while match := _OPEN.search(text, position):
    name, mark = match.groups()
    closing = f"\n<<<END {name} {mark}>>>"
    end = text.find(closing, match.end())
    if end < 0:
      position = match.end()
      continue
    found.append((name, text[match.end() + 1 : end]))
    position = end + len(closing)
  return found
