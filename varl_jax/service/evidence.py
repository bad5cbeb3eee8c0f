"""Everything kept of exploit cases and their repairs, for reports and audits.

Each case holds its task with the rubric it was scored under, both answers with
every verdict, and each repair round with all proposed criteria. The adversary's
answers live here and in the event log, never in a served task.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from varl_jax.service.event_log import EventStore
from varl_jax.types import ExploitCase, Patch, from_json


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaseRecord:
  """A case with its repairs, as shown in reports.

  Attributes:
    case: the pair and its task.
    queued: whether it was among the cases taken to repair.
    patches: its repair rounds; the second round of an on-policy case stands
      with the re-attack that opened it.
    pair: outcome of the check of pairs, "" without one (`pair_check`).
  """

  case: ExploitCase
  queued: bool
  patches: tuple[Patch, ...]
  pair: str = ""

  @property
  def repaired(self) -> bool:
    """Whether a criterion was added."""
    return any(patch.after is not None for patch in self.patches)


@dataclasses.dataclass(frozen=True, kw_only=True)
class History:
  """What a report tells of a run.

  Attributes:
    cases: see `read_cases`.
    guidance: one mapping a version, oldest first: `version`, `step`, both
      texts, `summary` and the `snapshot` of all it was written from.
    memos: one mapping a version, oldest first: `version`, `step`, `memo`,
      `status` and, once measured, the means of its probes.
  """

  cases: tuple[CaseRecord, ...]
  guidance: tuple[dict[str, Any], ...]
  memos: tuple[dict[str, Any], ...]


def read_cases(
  store: EventStore, *, limit: int | None = None, repaired: bool = False
) -> list[CaseRecord]:
  """Reads cases, the newest steps and the largest gaps first.

  Args:
    store: the run's store.
    limit: how many; None for all.
    repaired: whether to leave out cases no criterion was added for.
  """
  query = "SELECT case_id, queued, body FROM cases"
  if repaired:
    query += (
      " WHERE case_id IN (SELECT case_id FROM patches WHERE accepted = 1)"
    )
  query += " ORDER BY step DESC, gap DESC, case_id"
  if limit is not None:
    query += " LIMIT ?"
  records = []
  for case_id, queued, body in store.rows(
    query, () if limit is None else (limit,)
  ):
    payload = json.loads(body)
    records.append(
      CaseRecord(
        case=from_json(ExploitCase, payload["case"]),
        queued=bool(queued),
        pair=payload.get("pair", ""),
        patches=tuple(
          from_json(Patch, item["patch"]) for item in _patches(store, case_id)
        ),
      )
    )
  return records


def case_record(line: dict[str, Any]) -> CaseRecord:
  """A case as it stands in the export.

  Raises:
    ValueError, KeyError: it is none.
  """
  beside = ("queued", "patches", "pair")
  case = {k: v for k, v in line.items() if k not in beside}
  return CaseRecord(
    case=from_json(ExploitCase, case),
    queued=line["queued"],
    pair=line.get("pair", ""),
    patches=tuple(from_json(Patch, patch) for patch in line["patches"]),
  )


def newest_first(record: CaseRecord) -> tuple[int, float, str]:
  """The order of `read_cases`."""
  case = record.case
  return (-case.step, -case.gap, case.case_id)


def read_history(store: EventStore, *, limit: int | None = None) -> History:
  """Reads what a report shows."""
  guidance = store.rows("SELECT body FROM guidance ORDER BY version")
  memos = store.rows("SELECT body FROM memos ORDER BY version")
  return History(
    cases=tuple(read_cases(store, limit=limit)),
    guidance=tuple(json.loads(row[0]) for row in guidance),
    memos=tuple(json.loads(row[0]) for row in memos),
  )


def export_evidence(store: EventStore, path: str | os.PathLike[str]) -> int:
  """Writes one JSON object a case, oldest first; replaces the file at once.

  Returns:
    How many cases were written.
  """
  target = pathlib.Path(path)
  partial = target.with_name(target.name + ".partial")
  count = 0
  try:
    with open(partial, "w", encoding="utf-8") as lines:
      for record in _records(store):
        lines.write(json.dumps(record) + "\n")
        count += 1
    os.replace(partial, target)
  except OSError:
    with contextlib.suppress(OSError):
      partial.unlink()
    raise
  return count


def _records(store: EventStore) -> Iterator[dict[str, Any]]:
  rows = store.rows("SELECT case_id, body FROM cases ORDER BY step, case_id")
  for case_id, body in rows:
    payload = json.loads(body)
    patches = [item["patch"] for item in _patches(store, case_id)]
    checked = {"pair": payload["pair"]} if "pair" in payload else {}
    yield {
      **payload["case"],
      "queued": payload["queued"],
      **checked,
      "patches": patches,
    }


def _patches(store: EventStore, case_id: str) -> list[dict[str, Any]]:
  rows = store.rows(
    "SELECT body FROM patches WHERE case_id = ? ORDER BY round", (case_id,)
  )
  return [json.loads(row[0]) for row in rows]
