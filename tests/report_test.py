"""The page shows a run, whole or empty, and trusts no text in it."""

import base64
import dataclasses
import hashlib
import html.parser
import json
import re
import zlib

import pytest

from tests.report_runs import (
  ADDED,
  EVIL,
  case,
  history,
  kept_line,
  patch,
  record,
  write_run,
  write_store,
)
from varl_jax import report
from varl_jax.config import Config
from varl_jax.metrics import MetricsWriter
from varl_jax.report import ReportError, write_report
from varl_jax.report_cases import pick_cases
from varl_jax.roles.calibration import Calibration
from varl_jax.service.store import Event, Store
from varl_jax.types import GradedAnswer, Verdict, to_json


class _Page(html.parser.HTMLParser):
  """Collects tags, links and scripts, and checks that elements nest."""

  VOID = ("meta", "img", "input")

  def __init__(self, text):
    super().__init__()
    self.open: list[str] = []
    self.tags: list[str] = []
    self.links: list[str] = []
    self.scripts: list[tuple[dict, str]] = []
    self.policy = ""
    self.feed(text)
    assert self.open == []

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    for name, value in attrs:
      assert not name.startswith("on"), (tag, name)
      assert name != "style", tag
      if name in ("href", "src"):
        self.links.append(value)
    found = dict(attrs)
    if tag == "script":
      self.scripts.append((found, ""))
    if found.get("http-equiv") == "Content-Security-Policy":
      self.policy = found["content"]
    if tag not in self.VOID:
      self.open.append(tag)

  def handle_data(self, data):
    if self.open and self.open[-1] == "script":
      attributes, text = self.scripts[-1]
      self.scripts[-1] = (attributes, text + data)

  def handle_startendtag(self, tag, attrs):
    self.tags.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag


def _fragments(page, kind):
  """What the page unpacks when an item is opened."""
  found = []
  for attributes, text in page.scripts:
    if attributes.get("class") == "block" and attributes["data-kind"] == kind:
      found += json.loads(zlib.decompress(base64.b64decode(text), -15))
  return found


def _rows(page, kind):
  for attributes, text in page.scripts:
    if attributes.get("class") == "index" and attributes["data-kind"] == kind:
      return json.loads(text)["rows"]
  return []


def _write(folder, *, steps=2, kept=(), config=None, **found):
  write_run(folder, steps=steps, config=config, kept=kept)
  return write_report(folder, **found).read_text()


def _evil_run(folder):
  made = case(text=EVIL)
  judged = Verdict(met=True, votes=(True,), explanation=EVIL, judge=EVIL)
  exploit = dataclasses.replace(made.exploit, verdicts=(judged,))
  made = dataclasses.replace(made, exploit=exploit)
  return _write(
    folder,
    history=history(
      record(made, dataclasses.replace(patch(made), label=EVIL)),
      guidance=({"version": EVIL, "step": 1, "proposer": EVIL, EVIL: EVIL},),
      memos=({"version": 1, "step": None, "memo": EVIL},),
    ),
    kept=[kept_line(3, text=EVIL, task_id=EVIL)],
    config=Config().to_dict() | {"name": EVIL, "description": EVIL},
  )


def test_untrusted_text_stays_text(tmp_path):
  text = _evil_run(tmp_path)
  page = _Page(text)
  assert "img" not in page.tags
  assert "&lt;script&gt;alert(1)" in text
  assert "{{ 7*7 }}" in text
  for kind in ("cases", "rollouts"):
    fragments = _fragments(page, kind)
    assert len(fragments) == len(_rows(page, kind)) > 0
    for fragment in fragments:
      assert not {"img", "script"} & set(_Page(fragment).tags)
      assert "&lt;script&gt;alert(1)" in fragment


def test_what_the_judge_was_worth_is_told(tmp_path):
  found = dataclasses.asdict(
    Calibration(
      judge=EVIL,
      items=32,
      agreement=17 / 32,
      chance=17 / 32,
      undetermined=0.0,
      flip_rate=0.25,
      pairs=6,
      referee_right=0.5,
      position_bias=None,
      referee_failed=0.0,
    )
  )
  path = tmp_path / "calibration.json"
  path.write_text(json.dumps(found | {"levels": {}}))
  text = _write(tmp_path)
  assert "The judge measured before the run" in text
  assert "53%" in text and "25%" in text and EVIL not in text
  path.write_text("{")
  with pytest.raises(ReportError, match="delete it"):
    write_report(tmp_path)
  path.unlink()
  assert "measured before the run" not in _write(tmp_path / "other")


def test_a_page_runs_its_own_script_and_no_other(tmp_path):
  page = _Page(_evil_run(tmp_path))
  own = [text for found, text in page.scripts if "type" not in found]
  assert len(own) == 1
  digest = base64.b64encode(hashlib.sha256(own[0].encode()).digest()).decode()
  assert f"script-src 'sha256-{digest}'" in page.policy
  for found, text in page.scripts:
    if "type" in found:
      assert found["type"] in ("application/json", "text/plain")
      # Nothing in it ends the element, or begins a comment or an element.
      assert not re.search(r"[<>&\u2028\u2029]", text)
  assert "<script>alert(1)" in _rows(page, "cases")[0][1]


def test_the_page_needs_nothing_from_outside(tmp_path):
  text = _write(tmp_path, history=history(), config=Config().to_dict())
  page = _Page(text)
  assert all(link.startswith("#") for link in page.links)
  assert page.policy.startswith("default-src 'none'; style-src 'sha256-")
  assert "connect-src" not in page.policy
  assert "unsafe" not in page.policy
  assert not re.search(r"url\(|@import|https?://", text)


def test_every_link_and_label_has_its_target(tmp_path):
  made = case()
  text = _write(
    tmp_path, history=history(record(made, patch(made))), kept=[kept_line(3)]
  )
  page = _Page(text)
  ids = re.findall(r' id="([^"]+)"', text)
  assert len(ids) == len(set(ids))
  wanted = re.findall(r' (?:aria-labelledby="|href="#)([^"]+)"', text)
  routed = {name for name in wanted if "/" in name}
  assert set(wanted) - routed <= set(ids)
  keys = {
    f"{kind}/{row[0]}"
    for kind in ("cases", "rollouts")
    for row in _rows(page, kind)
  }
  inside = [f for kind in ("cases", "rollouts") for f in _fragments(page, kind)]
  routed |= set(re.findall(r'href="#([^"]+)"', "".join(inside)))
  assert routed <= keys
  assert {"rollouts/3.task0.0", "rollouts/3.task0.1", "cases/case0"} <= routed


def test_a_case_reads_from_task_to_repaired_rubric(tmp_path):
  made = case()
  text = _write(
    tmp_path, history=history(record(made, patch(made))), kept=[kept_line(3)]
  )
  order = [
    "Write a story.",
    "a thin list",
    "a good story",
    "Names the lantern",
    "mentions(lantern)",
    "3 of 8",
    '<tr class="added">',
    ADDED.text,
  ]
  (fragment,) = _fragments(_Page(text), "cases")
  for shown in (text[text.index('<details class="case"') :], fragment):
    places = [shown.index(part) for part in order]
    assert places == sorted(places)
    for part in ("+0.40", "\u22120.20", "undetermined", "keyword stuffing"):
      assert part in shown
  assert fragment.count('<tr class="added">') == 1


def test_both_rounds_of_a_repair_are_shown(tmp_path):
  made = case()
  second = dataclasses.replace(patch(made, accepted=False), round=2)
  text = _write(tmp_path, history=history(record(made, patch(made), second)))
  (fragment,) = _fragments(_Page(text), "cases")
  assert fragment.count('<tr class="added">') == 1
  assert "Proposed and rejected in round 2 (1)" in fragment
  assert "not separating" in fragment


def test_a_rejected_criterion_is_shown_as_rejected(tmp_path):
  made = case()
  text = _write(
    tmp_path, history=history(record(made, patch(made, accepted=False)))
  )
  assert '<tr class="added">' not in text
  assert "No proposed criterion was accepted." in text
  assert "not separating" in text


def test_an_answer_without_verdicts_or_text_is_shown(tmp_path):
  missing = GradedAnswer(
    sample=0, answer=None, verdicts=(), score=None, raw=None, truncated=True
  )
  text = _write(tmp_path, history=history(record(case(exploit=missing))))
  assert "(no final answer)" in text
  assert "no score" in text
  assert "not judged" in text


def test_tokens_say_whether_they_were_trained_and_how_likely(tmp_path):
  line = kept_line(3, text="one two three <four")
  page = _Page(_write(tmp_path, history=history(), kept=[line]))
  first, second = _fragments(page, "rollouts")
  tokens = re.search(r'<p class="tokens">(.*?)</p>', first)[1]
  assert re.findall(r'<span class="(\w+)"[^>]*>([^<]*)</span>', tokens) == [
    ("q0", "one"),
    ("q3", " two"),
    ("q4", " three"),
    ("masked", " &lt;four"),
  ]
  assert "7 more tokens were not kept" in first
  assert "+0.25" in first
  assert "\u22120.25" in second


@pytest.mark.parametrize("steps", [0, 1])
def test_short_runs_have_a_page(tmp_path, steps):
  text = _write(tmp_path, steps=steps)
  _Page(text)
  for words in (
    "No exploit case was kept.",
    "Not measured",
    "No answer was kept.",
    "No version was written.",
    "No step was timed.",
    "No figure of the judges was recorded.",
  ):
    assert words in text
  assert ("has recorded no step" in text) == (steps == 0)


def test_absent_keys_leave_their_charts_out(tmp_path):
  with MetricsWriter(tmp_path) as writer:
    writer.write(0, {"eval/score": 0.2})
    writer.write(1, {"patch/lead_before": 0.4})
    writer.write(2, {"judge/undetermined_rate": 0.0, "pool/size": 5})
  text = write_report(tmp_path).read_text()
  _Page(text)
  assert text.count('<svg class="chart"') == 4
  assert "judge/undetermined_rate" in text


def test_stages_and_costs_are_those_of_the_metrics(tmp_path):
  write_run(
    tmp_path,
    **{
      "time/poll": 1.0,
      "time/some_new_stage": 3.0,
      "time/step": 4.0,
      "time/update/compile": 0.5,
      "calls/judge/calls": 40,
      "calls/judge/cost": 0.75,
      "calls/judge/failed_timeout": 2,
      "eval/calls/judge/calls": 3,
      "calls/cost": 0.75,
    },
  )
  text = write_report(tmp_path).read_text()
  assert "Seconds of a step by stage: poll 25%, some_new_stage 75%." in text
  assert text.count('<rect class="stage1"') == 2
  assert "update/compile" in text
  row = re.search(r'<th scope="row">judge</th>(.*?)</tr>', text)[1]
  assert re.findall(r"<td>(.*?)</td>", row) == ["80", "0", "0", "4", "1.50"]
  assert '<th scope="row">judge, validation</th><td>6</td>' in text
  assert "$1.50" in text


def test_guidance_and_memo_show_what_changed_and_how_it_fared(tmp_path):
  with MetricsWriter(tmp_path) as writer:
    for step, score in ((1, 0.5), (2, 0.625)):
      writer.write(
        step, {"guidance/version": step, "guidance/train_mean": score}
      )
  text = write_report(
    tmp_path,
    history=history(
      guidance=(
        {"version": 1, "step": 1, "proposer": "ask for a key"},
        {"version": 2, "step": 2, "proposer": "ask for a lamp & more"},
      ),
      memos=(
        {"version": 0, "step": None, "memo": "", "margin": 0.3, "honest": 0.5},
        {
          "version": 1,
          "step": 2,
          "memo": "be strict",
          "status": "rolled_back",
          "margin": 0.1,
          "honest": 0.62,
        },
        {"version": 2, "step": 3, "memo": "be fair"},
      ),
    ),
  ).read_text()
  assert "ask for a <del>key</del><ins>lamp &amp; more</ins>" in text
  assert "train mean <b>0.625</b>" in text
  # 0.1 + 2 (0.62 - 0.5 - 0.02), see `service.memo`.
  assert "objective <b>0.300</b>" in text
  # The third was written from the first: the second was rolled back.
  assert "<ins>be fair</ins>" in text


def test_runs_are_laid_over_one_another(tmp_path):
  folders = [tmp_path / name for name in ("one", "two", "three")]
  for index, folder in enumerate(folders):
    made = case(index)
    name = f"arm{min(index, 1)}"
    config = Config().to_dict() | {"name": name, "seed": index}
    write_run(
      folder, config=config, kept=[kept_line(3, task_id=f"task{index}")]
    )
    write_store(folder, [record(made, patch(made))])
  out = tmp_path / "compared.html"
  assert report.main([*map(str, folders), f"--out={out}"]) == 0
  text = out.read_text()
  page = _Page(text)
  for name in ("arm0", "arm1", "arm1 (2)"):
    assert f"</span>{name}</th>" in text
  chart = re.search(r"Training reward: .*?\"", text)
  assert chart[0].count(" from 0.410 to 0.420") == 3
  assert {row[3][0] for row in _rows(page, "cases")} == {
    "arm0",
    "arm1",
    "arm1 (2)",
  }
  assert "<code>seed</code></th><td>0</td><td>1</td><td>2</td>" in text


def test_cases_are_repaired_ones_first_each_task_once_over_the_run():
  cases = [case(i, step=i, gap=0.2 + (i % 3) / 10) for i in range(12)]
  again = case(99, step=4, gap=0.1, task=cases[4].task)
  plain = case(50, step=50, gap=5.0)
  records = [record(c, patch(c)) for c in (*cases, again)]
  records.append(record(plain))
  picked = [found.case for found in pick_cases(records)]
  assert len(picked) == 5
  assert [c.step for c in picked] == sorted(c.step for c in picked)
  assert len({c.task.task_id for c in picked}) == 5
  assert plain not in picked
  assert again not in picked
  assert picked[0].step < 4
  assert picked[-1].step > 8
  assert pick_cases(records[-1:]) == records[-1:]


def test_the_store_of_a_run_is_read_while_it_is_open(tmp_path):
  made = case()
  store = Store(tmp_path / "service.sqlite")
  store.commit(
    [
      Event(
        uid="a",
        kind="case",
        step=3,
        payload={"case": to_json(made), "queued": True},
      ),
      Event(
        uid="b",
        kind="patch",
        step=3,
        payload={"patch": to_json(patch(made)), "task": None},
      ),
    ]
  )
  found = report.read_service(tmp_path / "service.sqlite")
  assert found == history(record(made, patch(made)))
  assert "Names the lantern" in write_report(tmp_path).read_text()
  store.close()


def test_damage_is_one_clear_sentence_and_exit_code_2(tmp_path, capsys):
  (tmp_path / "config.json").write_text("{")
  assert report.main([str(tmp_path)]) == 2
  assert "config.json is no JSON" in capsys.readouterr().err
  (tmp_path / "config.json").unlink()
  (tmp_path / "rollouts.jsonl").write_text('{"step": 1}\nno\n{"step": 2}\n')
  assert report.main([str(tmp_path)]) == 2
  assert "Line 2 of" in capsys.readouterr().err
  (tmp_path / "rollouts.jsonl").unlink()
  (tmp_path / "service.sqlite").write_text("this is no database at all")
  assert report.main([str(tmp_path)]) == 2
  assert "service.sqlite cannot be re" in capsys.readouterr().err
  with pytest.raises(ReportError, match="no run folder"):
    write_report(tmp_path / "elsewhere")
  assert not (tmp_path / "report.html").exists()


def test_the_command_prints_the_path(tmp_path, capsys):
  assert report.main([str(tmp_path)]) == 0
  assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"
