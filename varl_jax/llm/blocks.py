"""Delimited blocks for untrusted text inside prompts.

A block looks like

    <<<ANSWER 5f0c2a91be44>>>
    ...
    <<<END ANSWER 5f0c2a91be44>>>

The text in it is neutralised (`llm.untrusted`): it holds no run of three angle
brackets, so it can neither close its block nor open another one, whatever mark
it writes. The mark, a hash of name and text, is what tells a reader that a
line which merely looks like a delimiter is not one. Whoever writes the text
can work out the marks of other texts, but a mark of its own would be a fixed
point of the hash, and neither gets past the brackets. The hash is therefore
not keyed by a secret of the run: a key would add nothing that the brackets do
not give, and would make the same prompt another one in every run, so that a
journal of calls, a cache of a server or a second run with the same seed found
nothing again.
"""

import hashlib
import re

from varl_jax.llm.untrusted import neutralised

_OPEN = re.compile(r"^<<<([A-Z][A-Z_ 0-9]*) ([0-9a-f]{12})>>>$", re.M)


def block(name: str, text: str) -> str:
  """Wraps `text`, neutralised, as a block.

  Raises:
    ValueError: `name` is not upper case or starts like a closing line.
  """
  if not re.fullmatch("(?!END )[A-Z][A-Z_ 0-9]*", name):
    raise ValueError(f"A block's name is in upper case, got {name!r}.")
  safe = neutralised(text)
  mark = hashlib.sha256(f"varl_jax\0{name}\0{safe}".encode()).hexdigest()[:12]
  return f"<<<{name} {mark}>>>\n{safe}\n<<<END {name} {mark}>>>"


def read_blocks(text: str) -> list[tuple[str, str]]:
  """Lists the (name, neutralised text) of every complete block, in order."""
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
