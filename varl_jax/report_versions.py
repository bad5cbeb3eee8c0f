"""Guidance and memo, version by version: what changed, and how it fared."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from varl_jax import charts
from varl_jax.service.memo import memo_objective

_WORD = re.compile(r"\s+|\S+")


def word_diff(before: str, after: str) -> Markup:
  """Both texts in one, words that went in <del>, words that came in <ins>."""
  old, new = _WORD.findall(before), _WORD.findall(after)
  matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
  parts = []
  for kind, a, b, c, d in matcher.get_opcodes():
    if kind == "equal":
      parts.append(escape("".join(new[c:d])))
      continue
    if b > a:
      parts.append(Markup("<del>{}</del>").format("".join(old[a:b])))
    if d > c:
      parts.append(Markup("<ins>{}</ins>").format("".join(new[c:d])))
  return Markup("").join(parts)


def guidance_views(
  versions: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
  """Versions of the guidance, oldest first.

  Each is compared with the one before it. Its numbers are the last mean
  training reward recorded under it, and the hidden score of the validation that
  followed, which people read and no role does.
  """
  means, hidden = {}, {}
  version = 0
  for record in records:
    version = record.get("guidance/version", version)
    if "guidance/train_mean" in record:
      means[version] = record["guidance/train_mean"]
    if "eval/score" in record:
      hidden[version] = record["eval/score"]
  views = []
  past: Mapping[str, Any] = {}
  for entry in versions:
    number = entry.get("version")
    facts = []
    for label, table in (("train mean", means), ("hidden score", hidden)):
      if number in table:
        facts.append((label, f"{table[number]:.3f}"))
    views.append(_view(entry, past, facts, ("proposer", "generator")))
    past = entry
  return views


def memo_views(
  versions: Sequence[Mapping[str, Any]], config: Mapping[str, Any]
) -> list[dict[str, Any]]:
  """Versions of the memo, oldest first, with their objective J.

  Each is compared with the newest one before it that was kept, which is what
  it was written from.
  """
  settings = config.get("memo", {})
  baseline = next((v["honest"] for v in versions if "honest" in v), None)
  views = []
  past: Mapping[str, Any] = {}
  for entry in versions:
    facts = []
    if "margin" in entry and "honest" in entry and baseline is not None:
      value = memo_objective(
        entry["margin"],
        entry["honest"],
        baseline,
        target_margin=settings.get("target_margin", 0.0),
        kappa=settings.get("kappa", 2.0),
        tolerance=settings.get("tolerance", 0.02),
      )
      facts.append(("objective", f"{value:.3f}"))
    for name in ("margin", "honest", "win_rate"):
      if name in entry:
        facts.append((name.replace("_", " "), charts.number(entry[name])))
    views.append(_view(entry, past, facts, ("memo",)))
    if entry.get("status") not in ("rolled_back", "rewound"):
      past = entry
  return views


def _view(
  entry: Mapping[str, Any],
  past: Mapping[str, Any],
  facts: Sequence[tuple[str, str]],
  names: Sequence[str],
) -> dict[str, Any]:
  texts = []
  for name in names:
    now, before = str(entry.get(name, "")), str(past.get(name, ""))
    if now or before:
      texts.append((name, word_diff(before, now), now == before))
  return {
    "version": entry.get("version", "?"),
    "step": entry.get("step"),
    "status": str(entry.get("status", "")).replace("_", " "),
    "summary": str(entry.get("summary", "")),
    "texts": texts,
    "facts": list(facts),
  }
