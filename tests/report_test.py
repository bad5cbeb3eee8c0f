"""The page shows a run, whole or empty, and trusts no text in it."""

import dataclasses
import html.parser
import json
import re

import pytest

from varl_jax import report
from varl_jax.config import Config
from varl_jax.metrics import MetricsWriter
from varl_jax.report import ReportError, write_report
from varl_jax.report_page import pick_cases
from varl_jax.service.evidence import CaseRecord, History
from varl_jax.service.store import Event, Store
from varl_jax.types import (
  Criterion,
  ExploitCase,
  GradedAnswer,
  Message,
  Patch,
  PatchItem,
  Rubric,
  Task,
  Verdict,
  to_json,
)

EVIL = "</p><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7*7 }}"
RUBRIC = Rubric(
  criteria=(
    Criterion(text="Names the lantern", points=8, check="mentions(lantern)"),
    Criterion(text="Repeats a sentence", points=-6),
  )
)
ADDED = Criterion(
  text="Someone opens the door with the key", points=9, source="patch"
)


def _verdict(met):
  return Verdict(met=met, votes=(True,), explanation="seen", judge="check")


def _case(number=0, *, text="a thin list", step=3, gap=0.4, **changes):
  made = ExploitCase(
    case_id=f"case{number}",
    task=Task(
      task_id=f"task{number}",
      prompt=(Message(role="user", content=f"Write a story. {text}"),),
      rubric=RUBRIC,
    ),
    step=step,
    source="on_policy",
    exploit=GradedAnswer(
      sample=0,
      answer=text,
      verdicts=(_verdict(True), _verdict(False)),
      score=1.0,
      raw=1.0,
    ),
    honest=GradedAnswer(
      sample=1,
      answer="a good story",
      verdicts=(_verdict(True), _verdict(None)),
      score=0.6,
      raw=0.6,
    ),
    gap=gap,
  )
  return dataclasses.replace(made, **changes)


def _patch(case, *, accepted=True):
  items = (
    PatchItem(
      criterion=ADDED,
      on_exploit=_verdict(False),
      on_honest=_verdict(True),
      rejected="" if accepted else "not_separating",
    ),
  )
  after = Rubric(criteria=(*RUBRIC.criteria, ADDED), version=1)
  return Patch(
    case_id=case.case_id,
    task_id=case.task.task_id,
    step=case.step,
    round=1,
    label="keyword_stuffing",
    items=items,
    before=RUBRIC,
    after=after if accepted else None,
    gap_before=case.gap,
    gap_after=-0.2 if accepted else None,
  )


def _record(case, *patches):
  return CaseRecord(case=case, queued=bool(patches), patches=patches)


def _history(*records, guidance=(), memos=()):
  return History(cases=records, guidance=guidance, memos=memos)


class _Page(html.parser.HTMLParser):
  """Collects tags and checks that they nest."""

  VOID = ("meta", "img")

  def __init__(self, text):
    super().__init__()
    self.open: list[str] = []
    self.tags: list[str] = []
    self.links: list[str] = []
    self.feed(text)
    assert self.open == []

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    for name, value in attrs:
      assert not name.startswith("on"), (tag, name)
      assert name != "style", tag
      if name in ("href", "src"):
        self.links.append(value)
    if tag not in self.VOID:
      self.open.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.tags.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag


def _write(folder, *, steps=2, history=None, config=None):
  with MetricsWriter(folder) as writer:
    for step in range(1, steps + 1):
      writer.write(step, {"reward/mean": 0.4 + step / 100, "eval/score": 0.2})
  if config is not None:
    (folder / "config.json").write_text(json.dumps(config))
  return write_report(folder, history=history).read_text()


def test_untrusted_text_stays_text(tmp_path):
  case = _case(text=EVIL)
  evil_verdict = Verdict(met=True, votes=(True,), explanation=EVIL, judge=EVIL)
  case = dataclasses.replace(
    case, exploit=dataclasses.replace(case.exploit, verdicts=(evil_verdict,))
  )
  patch = dataclasses.replace(_patch(case), label=EVIL)
  history = _history(
    _record(case, patch),
    guidance=({"version": EVIL, "step": 1, EVIL: EVIL},),
    memos=({"version": 1, "step": None, "memo": EVIL},),
  )
  config = Config().to_dict() | {"name": EVIL, "description": EVIL}
  text = _write(tmp_path, history=history, config=config)
  page = _Page(text)
  assert "script" not in page.tags
  assert "img" not in page.tags
  assert "&lt;script&gt;alert(1)" in text
  assert "{{ 7*7 }}" in text


def test_the_page_needs_nothing_from_outside(tmp_path):
  text = _write(tmp_path, history=_history(), config=Config().to_dict())
  assert all(link.startswith("#") for link in _Page(text).links)
  assert "default-src 'none'" in text
  assert "unsafe-inline" not in text
  assert not re.search(r"url\(|@import|https?://", text)


def test_every_link_and_label_has_its_target(tmp_path):
  case = _case()
  history = _history(_record(case, _patch(case)))
  text = _write(tmp_path, history=history)
  ids = re.findall(r' id="([^"]+)"', text)
  assert len(ids) == len(set(ids))
  wanted = re.findall(r' (?:aria-labelledby="|href="#)([^"]+)"', text)
  assert set(wanted) <= set(ids)


def test_a_case_reads_from_task_to_repaired_rubric(tmp_path):
  case = _case()
  history = _history(_record(case, _patch(case)))
  text = _write(tmp_path, history=history)
  order = [
    "Write a story.",
    "a thin list",
    "a good story",
    "Names the lantern",
    "mentions(lantern)",
    '<tr class="added">',
    ADDED.text,
  ]
  places = [text.index(part) for part in order]
  assert places == sorted(places)
  assert text.count('<tr class="added">') == 1
  for part in ("+0.40", "\u22120.20", "undetermined", "keyword stuffing"):
    assert part in text


def test_a_rejected_criterion_is_shown_as_rejected(tmp_path):
  case = _case()
  history = _history(_record(case, _patch(case, accepted=False)))
  text = _write(tmp_path, history=history)
  assert '<tr class="added">' not in text
  assert "No proposed criterion was accepted." in text
  assert "not separating" in text


def test_an_answer_without_verdicts_or_text_is_shown(tmp_path):
  missing = GradedAnswer(
    sample=0, answer=None, verdicts=(), score=None, raw=None, truncated=True
  )
  text = _write(tmp_path, history=_history(_record(_case(exploit=missing))))
  assert "(no final answer)" in text
  assert "no score" in text
  assert "not judged" in text


@pytest.mark.parametrize("steps", [0, 1])
def test_short_runs_have_a_page(tmp_path, steps):
  text = _write(tmp_path, steps=steps)
  _Page(text)
  assert "No exploit case was kept." in text
  assert "Not measured in this run." in text
  assert ("has recorded no step" in text) == (steps == 0)


def test_absent_keys_leave_their_charts_out(tmp_path):
  with MetricsWriter(tmp_path) as writer:
    writer.write(0, {"eval/score": 0.2})
    writer.write(1, {"patch/lead_before": 0.4})
    writer.write(2, {"judge/undetermined_rate": 0.0, "pool/size": 5})
  text = write_report(tmp_path).read_text()
  _Page(text)
  assert text.count('<svg class="chart"') == 3
  assert "judge/undetermined_rate" in text


def test_cases_are_repaired_ones_first_each_task_once_over_the_run():
  cases = [_case(i, step=i, gap=0.2 + (i % 3) / 10) for i in range(12)]
  again = _case(99, step=4, gap=0.1, task=cases[4].task)
  plain = _case(50, step=50, gap=5.0)
  records = [_record(c, _patch(c)) for c in (*cases, again)]
  records.append(_record(plain))
  picked = [record.case for record in pick_cases(records)]
  assert len(picked) == 5
  assert [c.step for c in picked] == sorted(c.step for c in picked)
  assert len({c.task.task_id for c in picked}) == 5
  assert plain not in picked
  assert again not in picked
  assert picked[0].step < 4
  assert picked[-1].step > 8
  assert pick_cases(records[-1:]) == records[-1:]


def test_the_store_of_a_run_is_read_while_it_is_open(tmp_path):
  case = _case()
  store = Store(tmp_path / "service.sqlite")
  store.commit(
    [
      Event(
        uid="a",
        kind="case",
        step=3,
        payload={"case": to_json(case), "queued": True},
      ),
      Event(
        uid="b",
        kind="patch",
        step=3,
        payload={"patch": to_json(_patch(case)), "task": None},
      ),
    ]
  )
  found = report.read_service(tmp_path / "service.sqlite")
  assert found == _history(_record(case, _patch(case)))
  assert "Names the lantern" in write_report(tmp_path).read_text()
  store.close()


def test_damage_is_one_clear_sentence_and_exit_code_2(tmp_path, capsys):
  (tmp_path / "config.json").write_text("{")
  assert report.main([str(tmp_path)]) == 2
  assert "config.json is no JSON" in capsys.readouterr().err
  (tmp_path / "config.json").unlink()
  (tmp_path / "service.sqlite").write_text("this is no database at all")
  assert report.main([str(tmp_path)]) == 2
  assert "service.sqlite cannot be re" in capsys.readouterr().err
  with pytest.raises(ReportError, match="no run folder"):
    write_report(tmp_path / "elsewhere")
  assert not (tmp_path / "report.html").exists()


def test_the_command_prints_the_path(tmp_path, capsys):
  assert report.main([str(tmp_path)]) == 0
  assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"
