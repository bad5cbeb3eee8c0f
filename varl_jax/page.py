"""What all pages share: template engine, style sheet, script, their policy.

A page holds all it shows. Its policy forbids loading anything; the one style
sheet and the one script are allowed by hash, so that no text of a model could
run even if it were not escaped, which it always is.
"""

import base64
import functools
import hashlib
import importlib.resources
import json
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

import jinja2
from markupsafe import Markup

from varl_jax import charts

STYLE: Final = "report.css"
SCRIPT: Final = "report.js"
# Characters that could end a script element or begin a comment in one.
_UNSAFE: Final = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&"})


@functools.cache
def environment() -> jinja2.Environment:
  """Templates of the package; every value is escaped, none may be missing."""
  made = jinja2.Environment(
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    loader=jinja2.FunctionLoader(_source),
  )
  made.filters["number"] = charts.number
  made.filters["signed"] = signed
  made.filters["points"] = points
  made.filters["words"] = words
  made.filters["link"] = link
  return made


def render_page(
  template: str, /, *, script: bool = False, live: bool = False, **values: Any
) -> str:
  """A whole page.

  Args:
    template: its name.
    script: whether the page has the script.
    live: whether it may ask the server that it came from.
    **values: of the template.
  """
  style = _source(STYLE)
  code = _source(SCRIPT) if script else ""
  return (
    environment()
    .get_template(template)
    .render(
      style=Markup(style),
      script=Markup(code),
      policy=policy(script=script, live=live),
      live=live,
      **values,
    )
  )


def policy(*, script: bool, live: bool) -> str:
  """The content security policy of a page."""
  rules = ["default-src 'none'", f"style-src {_hash(_source(STYLE))}"]
  if script:
    rules.append(f"script-src {_hash(_source(SCRIPT))}")
  if live:
    rules.append("connect-src 'self'")
  return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def script_json(value: Any) -> Markup:
  """JSON for a script element: ASCII that no HTML parser takes for markup."""
  text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
  return Markup(text.translate(_UNSAFE))


def flatten(tree: Mapping[str, Any], path: str = "") -> list[tuple[str, str]]:
  """A tree of settings as (dotted name, value)."""
  rows: list[tuple[str, str]] = []
  for key, value in tree.items():
    if isinstance(value, Mapping):
      rows += flatten(value, f"{path}{key}.")
    else:
      rows.append((f"{path}{key}", str(value)))
  return rows


def signed(value: float) -> str:
  """A difference with its sign."""
  return f"{value:+.2f}".replace("-", "\u2212")


def points(value: float) -> str:
  """Points of a criterion with their sign."""
  return f"{value:+g}".replace("-", "\u2212")


def link(key: str) -> str:
  """A key as a part of an address; what UTF-8 cannot hold becomes "?"."""
  return urllib.parse.quote(key, safe="", errors="replace")


def words(name: str) -> str:
  """A typed reason as people write it."""
  return name.replace("_", " ")


@functools.cache
def _source(name: str) -> str:
  files = importlib.resources.files("varl_jax")
  return (files / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
  digest = hashlib.sha256(text.encode()).digest()
  return f"'sha256-{base64.b64encode(digest).decode()}'"
