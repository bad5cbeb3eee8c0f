"""The pages in a real browser; skipped where there is no Chromium.

They need `playwright` and, for accessibility, `axe-playwright-python`, and a
browser that the system has: no browser is downloaded.
"""

import dataclasses
import importlib.resources
import os
import shutil

import pytest

from tests.dashboard_test import Served
from tests.report_runs import (
  EVIL,
  case,
  kept_line,
  patch,
  record,
  write_run,
  write_store,
)
from varl_jax.config import Config
from varl_jax.report import write_report
from varl_jax.report_data import RunData
from varl_jax.report_page import case_browser, render_report
from varl_jax.service.evidence import History
from varl_jax.types import Verdict

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = os.environ.get("CHROMIUM") or next(
  filter(
    None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
  ),
  "",
)
if not CHROMIUM:
  pytest.skip("no Chromium on this machine", allow_module_level=True)

# Faults that axe calls serious or critical.
GRAVE = ("serious", "critical")


@pytest.fixture(scope="module")
def chromium():
  with sync_api.sync_playwright() as playwright:
    browser = playwright.chromium.launch(
      executable_path=CHROMIUM, args=["--no-sandbox"]
    )
    yield browser
    browser.close()


@pytest.fixture
def open_page(chromium):
  """Opens a page; what it logs or asks in a dialog fails the test."""
  said: list[str] = []
  contexts = []

  def opened(url, *, script=True, **options):
    context = chromium.new_context(
      java_script_enabled=script, viewport={"width": 1200, "height": 900}
    )
    contexts.append(context)
    page = context.new_page()
    page.emulate_media(**options)
    page.on("console", lambda line: said.append(line.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda shown: (said.append("dialog"), shown.dismiss()))
    page.goto(url)
    return page

  yield opened
  for context in contexts:
    context.close()
  assert said == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A run with everything in it, one case and one answer being hostile."""
  made = tmp_path_factory.mktemp("run")
  records = []
  for number in range(60):
    found = case(number, step=number % 7)
    records.append(record(found, patch(found)))
  evil = case(99, text=EVIL, step=9)
  judged = Verdict(met=True, votes=(True,), explanation=EVIL, judge=EVIL)
  exploit = dataclasses.replace(evil.exploit, verdicts=(judged,))
  evil = dataclasses.replace(evil, exploit=exploit)
  records.append(record(evil, dataclasses.replace(patch(evil), label=EVIL)))
  write_run(
    made,
    steps=9,
    config=Config().to_dict() | {"name": EVIL},
    kept=[
      kept_line(3, task_id="task3"),
      kept_line(9, task_id="task99", text=EVIL),
    ],
    **{
      "time/poll": 0.5,
      "time/update": 1.5,
      "time/step": 2.0,
      "patch/lead_before": 0.4,
      "patch/lead_after": -0.1,
      "exploit/cases": 3,
      "patch/accepted": 2,
      "judge/undetermined_rate": 0.1,
      "calls/judge/calls": 7,
      "calls/cost": 0.2,
      "eval/check_fluent": 0.7,
      "criteria/met_positive": 0.7,
    },
  )
  write_store(made, records)
  write_report(made)
  return made


@pytest.fixture(scope="module")
def report_url(folder):
  return (folder / "report.html").as_uri()


def browse_to_an_exploit(page):
  """From the list to a case, its rubric before and after, and its rollout."""
  cases = page.locator('.browser[data-kind="cases"]')
  cases.get_by_label("search").fill("case3")
  cases.locator('button[data-key="case3"]').click()
  detail = cases.locator(".detail")
  sync_api.expect(detail.locator("h4").first).to_contain_text("Case case3")
  rubric = detail.get_by_role("table").first
  sync_api.expect(rubric).to_contain_text("Names the lantern")
  sync_api.expect(rubric.locator("tr.added")).to_contain_text(
    "Someone opens the door with the key"
  )
  detail.get_by_role("link", name="Token by token").first.click()
  answer = page.locator('.browser[data-kind="rollouts"] .detail')
  sync_api.expect(answer.locator(".tokens")).to_have_text("a thin list")
  sync_api.expect(answer.locator(".masked")).to_have_text(" list")
  assert page.url.endswith("#rollouts/3.task3.0")
  answer.get_by_role("link", name="The exploit case").click()
  assert page.url.endswith("#cases/case3")
  sync_api.expect(detail).to_be_focused()


def test_a_reader_comes_from_a_case_to_its_rubric_and_its_rollout(
  open_page, report_url
):
  browse_to_an_exploit(open_page(report_url))


def test_the_same_on_the_dashboard_which_shows_what_is_new(
  open_page, folder, tmp_path
):
  live = shutil.copytree(folder, tmp_path / "live")
  with Served(live) as served:
    page = open_page(served.url)
    browse_to_an_exploit(page)
    sync_api.expect(page.locator(".pulse")).to_have_text("following")
    page.locator("#curves details").first.evaluate("one => one.open = true")
    write_run(live, steps=0)  # the folder is there already
    from varl_jax.metrics import MetricsWriter

    with MetricsWriter(live) as writer:
      writer.write(10, {"reward/mean": 0.875})
    tile = page.locator(".tile.reward dd")
    sync_api.expect(tile).to_contain_text("0.875", timeout=20_000)
    assert page.locator("#curves details").first.evaluate("one => one.open")
    assert page.url.endswith("#cases/case3")


@pytest.mark.parametrize("kind", ["cases", "rollouts"])
def test_what_a_model_wrote_does_nothing(open_page, report_url, kind):
  page = open_page(report_url)
  name = {"cases": "case99", "rollouts": "9.task99"}[kind]
  browser = page.locator(f'.browser[data-kind="{kind}"]')
  browser.get_by_label("search").fill(name)
  browser.locator(".list button").first.click()
  detail = browser.locator(".detail")
  sync_api.expect(detail).to_contain_text("<script>alert(1)</script>")
  assert page.locator("img").count() == 0
  assert page.locator("main script:not([type])").count() == 0


def test_keys_move_through_the_list(open_page, report_url):
  page = open_page(report_url)
  cases = page.locator('.browser[data-kind="cases"]')
  buttons = cases.locator(".list button")
  buttons.first.focus()
  page.keyboard.press("ArrowDown")
  sync_api.expect(buttons.nth(1)).to_be_focused()
  page.keyboard.press("Enter")
  sync_api.expect(cases.locator(".detail")).to_be_focused()
  sync_api.expect(buttons.nth(1)).to_have_attribute("aria-current", "true")
  cases.get_by_role("button", name="Next").click()
  sync_api.expect(cases.locator(".pager")).to_contain_text("2 of 2")


def test_filters_and_order_are_those_of_the_index(open_page, report_url):
  page = open_page(report_url)
  cases = page.locator('.browser[data-kind="cases"]')
  count = cases.locator(".count")
  sync_api.expect(count).to_have_text("61 of 61 cases")
  cases.get_by_label("label").select_option("keyword stuffing")
  sync_api.expect(count).to_have_text("60 of 61 cases")
  cases.get_by_label("search").fill("case5 lead")
  sync_api.expect(count).to_have_text("11 of 61 cases")
  cases.get_by_label("order").select_option("newest first")
  sync_api.expect(cases.locator(".row-facts").first).to_contain_text("step 6")
  cases.get_by_label("search").fill("nothing like it")
  sync_api.expect(count).to_have_text("0 of 61 cases")


def test_without_scripts_the_page_can_be_read(open_page, report_url):
  page = open_page(report_url, script=False)
  sync_api.expect(page.locator(".browser").first).to_be_hidden()
  sync_api.expect(page.locator("details.case").first).to_be_visible()
  sync_api.expect(page.locator("#cases noscript")).to_be_visible()
  sync_api.expect(page.locator("tr.added").first).to_be_visible()


def faults(page):
  """Serious faults that axe finds, with the elements."""
  axe = importlib.resources.files("axe_playwright_python") / "axe.min.js"
  page.evaluate(axe.read_text(encoding="utf-8"))
  found = page.evaluate("axe.run()")
  return [
    (fault["id"], [node["html"][:160] for node in fault["nodes"]][:4])
    for fault in found["violations"]
    if fault["impact"] in GRAVE
  ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["report", "dashboard", "compared", "begun"])
def test_pages_are_accessible(
  open_page, folder, report_url, tmp_path, scheme, kind
):
  pytest.importorskip("axe_playwright_python")
  if kind == "report":
    page = open_page(report_url, color_scheme=scheme)
    browse_to_an_exploit(page)
    page.evaluate("document.querySelectorAll('details').forEach(d=>d.open=1)")
    assert faults(page) == []
    return
  if kind == "dashboard":
    with Served(folder) as served:
      page = open_page(served.url, color_scheme=scheme)
      assert faults(page) == []
      return
  if kind == "compared":
    path = write_report(folder, folder, out=tmp_path / "compared.html")
  else:
    path = write_report(tmp_path)
  assert faults(open_page(path.as_uri(), color_scheme=scheme)) == []


def test_a_narrow_screen_does_not_scroll_sideways(open_page, report_url):
  page = open_page(report_url)
  page.set_viewport_size({"width": 380, "height": 800})
  wide = page.evaluate(
    """[...document.querySelectorAll("body *")]
      .filter((one) => one.getBoundingClientRect().right > 381)
      .filter((one) => !one.closest(".scroll"))
      .map((one) => one.outerHTML.slice(0, 100))"""
  )
  assert wide == []
  assert page.evaluate("document.documentElement.scrollWidth") <= 380


@pytest.mark.slow
def test_ten_thousand_cases_are_unpacked_one_block_at_a_time(
  open_page, tmp_path
):
  made = case()
  cases = []
  for number in range(10_000):
    found = dataclasses.replace(made, case_id=f"case{number}", step=number)
    cases.append(record(found, patch(found)))
  run = RunData(
    name="many",
    config={},
    records=[],
    history=History(cases=tuple(cases[::-1]), guidance=(), memos=()),
  )
  path = tmp_path / "many.html"
  path.write_text(render_report([run]))
  assert len(case_browser([("many", run)]).blocks) == 313
  page = open_page(path.as_uri())
  browser = page.locator('.browser[data-kind="cases"]')
  sync_api.expect(browser.locator(".count")).to_have_text(
    "10,000 of 10,000 cases"
  )
  assert page.locator("*").count() < 3000
  browser.get_by_label("search").fill("case4242")
  browser.locator('button[data-key="case4242"]').click()
  sync_api.expect(browser.locator(".detail h4").first).to_have_text(
    "Case case4242"
  )
