"""A benchmark's published judge template, in place of our judge's prompt.

The user supplies the file. Placeholders are names of `PLACEHOLDERS` written
`<<name>>`, `{{name}}` or `{name}`; nothing else in the file is touched, and
what is put in is never searched for placeholders again.

- `conversation`: every turn as `role: content`, separated by a blank line; the
  answer comes last as the assistant's turn, unless the template has a place of
  its own for it.
- `answer`: the answer alone.
- `item`: `[points] criterion`, whole points without a decimal point.
- `criterion`: the criterion's text alone.

A template that names `criteria_met` asks for JSON with `explanation` and a
boolean `criteria_met`; one that speaks of Yes and No asks for one of these
words.

Departures from the authors' graders: unless `faithful`, what is pasted stands
in our delimited blocks, and JSON is asked for by schema.
"""

import dataclasses
import hashlib
import importlib.resources
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from varl_jax.config import ConfigError, JudgeConfig
from varl_jax.llm.blocks import block
from varl_jax.types import Criterion, Message

Part = Literal["conversation", "answer", "item", "criterion"]

PLACEHOLDERS: Final[Mapping[str, Part]] = {
  "conversation": "conversation",
  "prompt": "conversation",
  "question": "conversation",
  "answer": "answer",
  "response": "answer",
  "completion": "answer",
  "rubric_item": "item",
  "criterion": "criterion",
  "criterion_text": "criterion",
  "criterion_description": "criterion",
}
_BLOCKS: Final[Mapping[Part, str]] = {
  "conversation": "CONVERSATION",
  "answer": "ANSWER",
  "item": "RUBRIC ITEM",
  "criterion": "CRITERION",
}
_NAMES = "|".join(PLACEHOLDERS)
_PLACE = re.compile(rf"<<({_NAMES})>>|\{{\{{({_NAMES})\}}\}}|\{{({_NAMES})\}}")
_UNKNOWN = re.compile(r"<<[A-Za-z_]+>>|\{\{[A-Za-z_]+\}\}")
_YES_NO = re.compile(r"""[\s*"'`]*(yes|no)[\s*"'`.!]*""", re.I)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgeTemplate:
  """A template as read from its file.

  Attributes:
    name: the file's name.
    sha256: of its bytes.
    text: the template.
    faithful: paste as the authors do, without blocks.
  """

  name: str
  sha256: str
  text: str
  faithful: bool

  @property
  def label(self) -> str:
    """The file's name and the first 12 digits of its hash."""
    return f"{self.name} {self.sha256[:12]}"

  @property
  def parts(self) -> frozenset[Part]:
    """What the template has places for."""
    return frozenset(
      PLACEHOLDERS[next(filter(None, match.groups()))]
      for match in _PLACE.finditer(self.text)
    )

  @property
  def json(self) -> bool:
    """Whether the reply is JSON rather than Yes or No."""
    return "criteria_met" in self.text

  def messages(
    self, prompt: Sequence[Message], answer: str, criterion: Criterion
  ) -> tuple[Message, ...]:
    """The filled template, after the rule on blocks where there are any."""
    split = "answer" in self.parts
    turns = list(prompt)
    if not split and self.faithful:
      turns.append(Message(role="assistant", content=answer))
    texts: dict[Part, str] = {
      "conversation": "\n\n".join(f"{t.role}: {t.content}" for t in turns),
      "answer": answer,
      "item": f"[{points_text(criterion.points)}] {criterion.text}",
      "criterion": criterion.text,
    }
    if not self.faithful:
      texts = {part: block(_BLOCKS[part], texts[part]) for part in texts}
      if not split:
        texts["conversation"] += f"\n\n{texts['answer']}"

    def fill(match: re.Match[str]) -> str:
      text = texts[PLACEHOLDERS[next(filter(None, match.groups()))]]
      if self.faithful:
        return text
      # A block's lines stand alone, wherever its placeholder stood.
      whole = match.string
      before = "" if whole[: match.start()].endswith("\n") else "\n"
      after = "" if whole.startswith("\n", match.end()) else "\n"
      return f"{before}{text}{after}"

    # Half a character, which JSON data can hold, could not be sent.
    filled = _PLACE.sub(fill, self.text).encode("utf-8", "replace").decode()
    user = Message(role="user", content=filled)
    return (user,) if self.faithful else (_rule_on_blocks(), user)


def points_text(points: float) -> str:
  """Points as the data has them: `7`, `-5`, `2.5`."""
  return str(int(points)) if float(points).is_integer() else str(points)


def read_yes_no(text: str) -> bool | None:
  """True for a reply that is Yes and nothing more, False for No, else None."""
  match = _YES_NO.fullmatch(text)
  return None if match is None else match[1].lower() == "yes"


def load_template(
  path: str, *, sha256: str = "", faithful: bool = False
) -> JudgeTemplate:
  """Reads a template.

  Args:
    path: of the published file.
    sha256: its expected hash, "" to take the file as it is.
    faithful: see `JudgeTemplate`.

  Raises:
    ConfigError: no such file, another hash, or placeholders or reply form
      cannot be recognized.
  """
  try:
    data = pathlib.Path(path).read_bytes()
    text = data.decode()
  except (OSError, UnicodeDecodeError) as error:
    reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
    raise ConfigError(
      f"The judge template {path} cannot be read ({reason}); give the"
      " published file's path as judge.template_path."
    ) from error
  found = hashlib.sha256(data).hexdigest()
  if sha256 and found != sha256.lower():
    raise ConfigError(
      f"The judge template {path} has the hash {found}, not"
      f" judge.template_sha256 {sha256}; get the published file or set the"
      " hash of yours."
    )
  template = JudgeTemplate(
    name=pathlib.Path(path).name, sha256=found, text=text, faithful=faithful
  )
  problem = _problem(template)
  if problem:
    raise ConfigError(f"The judge template {path} cannot be used: {problem}")
  return template


def with_hash(config: JudgeConfig) -> JudgeConfig:
  """The settings with the template's hash, which is then part of the run.

  A hash that is given is kept, and the file not read.

  Raises:
    ConfigError: the file is needed and cannot be used.
  """
  known = config.template_sha256.lower()
  if config.template_path and not known:
    try:
      known = load_template(config.template_path).sha256
    except ConfigError as error:
      raise ConfigError(
        f"{error} Where only the service has the file, set its hash as"
        " judge.template_sha256."
      ) from error
  return dataclasses.replace(config, template_sha256=known)


def _problem(template: JudgeTemplate) -> str:
  parts = template.parts
  known = ", ".join(PLACEHOLDERS)
  if not parts & {"item", "criterion"}:
    return f"it has no place for the criterion (placeholders: {known})."
  if not parts & {"conversation", "answer"}:
    return f"it has no place for the answer (placeholders: {known})."
  unknown = _UNKNOWN.search(_PLACE.sub("", template.text))
  if unknown:
    return f"nothing is known to replace {unknown[0]} by (known: {known})."
  words = set(re.findall(r"[a-z]+", template.text.lower()))
  if not template.json and not {"yes", "no"} <= words:
    return "it asks neither for `criteria_met` nor for Yes or No."
  return ""


def _rule_on_blocks() -> Message:
  folder = importlib.resources.files("varl_jax.prompts")
  rule = (folder / "shared" / "untrusted.txt").read_text(encoding="utf-8")
  return Message(role="system", content=rule.strip())
