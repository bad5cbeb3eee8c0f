"""Figures and tables from saved results; gaps say what would fill them."""

import itertools
import json
import pathlib
import re
import shutil

import pytest

from experiments import paper_values, saved
from experiments.saved import Cell, ResultError, Saved
from experiments.tables import __main__ as tables
from experiments.tables import configuration, exploits, scores
from experiments.tables.table import Table, marks
from tests.experiments import saved_results
from varl_jax.benchmarks import BENCHMARKS
from varl_jax.benchmarks.answering import OVER_PASSAGES
from varl_jax.roles.auditor import CATEGORIES

COMMITTED = pathlib.Path(__file__).parents[2] / "experiments" / "results"
HARD = "$x_1^{2}$ 100% \\frac{a} # <b> | `c` " * 20


@pytest.fixture(scope="module")
def full(tmp_path_factory):
  return saved_results.write(tmp_path_factory.mktemp("full"), text=HARD)


@pytest.fixture(scope="module")
def made(full, tmp_path_factory):
  out = tmp_path_factory.mktemp("tables")
  return out, tables.write(Saved(full), out)


def test_every_table_is_written_and_nothing_is_missing(made):
  out, found = made
  assert sorted(found) == [2, 3, *range(5, 15)]
  for number, table in found.items():
    assert table.number == number
    text = (out / f"table_{number:02d}.md").read_text()
    assert text.startswith(f"# Table {number}: ")
    if number != 14:
      assert table.missing == [], number
    widths = {line.count("|") for line in text.splitlines() if line[:1] == "|"}
    assert len(widths) == 1, number


def rows(out, number):
  table = json.loads((out / f"table_{number:02d}.json").read_text())
  return {row["name"]: row["cells"] for row in table["rows"]}


def value(cells, index):
  return cells[index]["value"]


def test_numbers_are_those_of_the_results(made):
  out, _ = made
  number = saved_results.number
  page = "healthbench_professional"
  found = rows(out, 3)
  rri, base = found["9B: RRI"], found["9B: Generation Only"]
  assert value(rri, 0) == number(page, "rri-9b")
  assert value(rri, 1) == number(page, "rri-9b", "raw")
  assert value(rri, 3) == number(page, "rri-9b", "writing")
  gain = found["9B: RRI less Generation Only"]
  assert value(gain, 6) == pytest.approx(value(rri, 6) - value(base, 6))
  assert gain[3]["paper"] == 0.391 and rri[3]["paper"] == 0.590
  found = rows(out, 5)
  assert value(found["27B"], 1) == number(page, "rri-27b-official")
  found = rows(out, 6)
  assert value(found["Cardiology"], 1) == number(page, "rri-9b", "Cardiology")
  found = rows(out, 7)
  images = found["MedXpertQA, images"]
  assert value(images, 1) == number("medxpertqa", "rri-medxpertqa-9b", "image")
  found = rows(out, 8)
  assert value(found["some-model"], 0) == number(page, "frontier-some-model")
  found = rows(out, 9)
  best = max(
    number(page, f"{m}-9b") for m in ("medrag", "rag_fusion", "imedrag")
  )
  lead = found["RRI less the best of the first three"]
  assert value(lead, 0) == pytest.approx(number(page, "rri-9b") - best)
  found = rows(out, 10)
  assert value(found["overall"], 2) == number("healthbench_hard", "rri-27b")
  assert found["axis: accuracy"][0]["value"] is not None
  found = rows(out, 14)
  story = found["Story world: RRI"]
  assert value(story, 0) == pytest.approx(number("story", "rri") + 0.01)
  assert story[0]["error"] == pytest.approx(0.01)
  assert value(story, 2) == pytest.approx(0.6)
  assert found["9B: EvoRubrics"][0]["paper"] == 0.493
  assert value(found["9B: EvoRubrics"], 0) == number(page, "evo_rubrics-9b")


def test_exploit_tables_add_up(made):
  out, _ = made
  found = rows(out, 12)
  clinical = saved_results.shares()["categories"]["missed_negatives"]["cases"]
  # Two clinical analyses of 60 cases each, one of either other domain.
  assert value(found["Missed negatives"], 1) == pytest.approx(clinical / 60)
  assert found["cases"][1].startswith("120 (7,032)")
  for column in range(1, 5):
    total = sum(value(found[t], column) for t in exploits.TITLES.values())
    assert total == pytest.approx(1)
  found = rows(out, 13)
  assert found["Missed negatives"][0]["paper"] == 0.40
  assert list(exploits.DEFINITIONS) == list(CATEGORIES)


def test_an_analysis_of_the_same_runs_counts_once(full, tmp_path):
  copy = shutil.copytree(full, tmp_path / "copy")
  (copy / "again").mkdir()
  shutil.copy(copy / "rri-9b" / "analysis.json", copy / "again")
  found = exploits.shares_of(Saved(copy), "clinical")
  assert found is not None and found["cases"] == 120


def test_missing_numbers_name_commands_that_exist(tmp_path):
  (tmp_path / "none").mkdir()
  found = tables.write(Saved(tmp_path / "none"), tmp_path / "out")
  seen = set()
  for number, table in found.items():
    if number in (2, 11):
      assert table.missing == []
      continue
    assert table.missing, number
    text = table.markdown()
    for fill in table.missing:
      assert f"`{fill}`" in text
      seen.add(fill.split()[2])
      if match := re.search(r"--benchmark=(\S+)", fill):
        assert match[1] in BENCHMARKS
      if match := re.search(r"--method=(\S+)", fill):
        assert match[1] in OVER_PASSAGES
      if match := re.search(r"--setting=(\S+)", fill):
        assert match[1] in saved.TITLES
  assert seen == {
    "experiments.compare_arms",
    "varl_jax.analysis",
    "varl_jax.evaluate",
  }


def test_the_commands_put_results_where_they_are_looked_for(tmp_path):
  """A row's folder is named by its own command, an arm's file as well."""
  store = Saved(tmp_path)
  fill = scores.professional(store, "9b", "rri", "raw").fill
  place = pathlib.Path(re.search(r"--workdir=(\S+)", fill)[1])
  place.mkdir(parents=True)
  (place / "results.json").write_text(json.dumps({"score": 0.5, "raw": 0.6}))
  assert scores.professional(Saved(tmp_path), "9b", "rri", "raw").value == 0.6
  fill = store.fill_arms("27b")
  place = pathlib.Path(re.search(r"--out=(\S+)", fill)[1])
  place.write_text(json.dumps({"arms": {"rri": {"hidden": [0.4]}}}))
  assert Saved(tmp_path).arm("27b", "rri") == Cell(value=0.4)


def test_damaged_results_are_named(tmp_path):
  (tmp_path / "arms_9b.json").write_text("{")
  with pytest.raises(ResultError, match=r"arms_9b\.json is no JSON"):
    Saved(tmp_path).arm("9b", "rri")
  (tmp_path / "arms_9b.json").write_text("{}")
  with pytest.raises(ResultError, match="has no 'arms'"):
    Saved(tmp_path).arm("9b", "rri")


def test_the_configurations_are_the_configs():
  config = configuration.config_of("9b", "generation_only")
  assert config.method.name == "generation_only"
  table = configuration.configurations(Saved(pathlib.Path("none")))
  found = dict(table.rows)
  columns = list(table.columns)[1:]
  assert found["patches in training"][columns.index("9B: RRI")] == "yes"
  assert found["patches in training"][columns.index("9B: RaR")] == "-"
  assert found["answers a task"] == ["8"] * len(columns)


def test_the_paper_agrees_with_itself():
  """Gains and scores that the text gives both of."""
  known, gains = paper_values.PROFESSIONAL, paper_values.GAINS
  for setting, column in (("9b", "score"), ("27b", "score"), ("9b", "writing")):
    gap = (
      known[setting, "rri", column] - known[setting, "generation_only", column]
    )
    assert gap == pytest.approx(gains[setting, column], abs=1.5e-3)
  for name in ("prbench_hard", "profbench"):
    gap = (
      paper_values.TRANSFER[name, "rri"]
      - paper_values.TRANSFER[name, "untrained"]
    )
    assert gap == pytest.approx(paper_values.TRANSFER_GAINS[name], abs=1e-3)
  best = paper_values.INFERENCE["imedrag", "9b"]
  lead = known["9b", "rri", "score"] - best
  assert lead == pytest.approx(paper_values.INFERENCE_GAINS["9b"], abs=1e-3)


def test_letters_and_cells():
  assert marks(28)[-3:] == ["z", "aa", "ab"]
  table = Table(
    number=3,
    title="t",
    columns=["", "a", "b"],
    rows=[("r", [Cell(value=0.5, error=0.01, paper=0.4), Cell(fill="run")])],
  )
  assert "| r | 0.500 +- 0.010 (0.400) | - *a* |" in table.markdown()
  assert "- a: `run`" in table.markdown()
  gap = saved.less(Cell(value=0.5, error=0.3), Cell(value=0.2, error=0.4))
  assert gap.value == pytest.approx(0.3) and gap.error == pytest.approx(0.5)


def test_the_committed_results_fill_the_story_rows(tmp_path):
  found = tables.write(Saved(COMMITTED), tmp_path)
  cells = dict(found[14].rows)
  for arm in ("Generation Only", "Co-evolve Only", "RRI"):
    cell = cells[f"Story world: {arm}"][0]
    assert cell.value is not None and cell.error is not None
  assert exploits.shares_of(Saved(COMMITTED), "story")


@pytest.fixture(scope="module")
def drawn(full, tmp_path_factory):
  pytest.importorskip("matplotlib")
  from experiments.figures import __main__ as figures

  out = tmp_path_factory.mktemp("figures")
  return out, figures.draw(Saved(full), out)


def test_every_figure_renders_from_whole_results(drawn):
  out, gaps = drawn
  assert sorted(gaps) == list(range(2, 8))
  assert not any(gaps.values())
  for number in gaps:
    assert (out / f"figure_{number:02d}.pdf").read_bytes()[:5] == b"%PDF-"
    assert (out / f"figure_{number:02d}.png").read_bytes()[1:4] == b"PNG"
    text = (out / f"figure_{number:02d}.md").read_text()
    assert "Nothing is missing." in text


def test_bars_are_the_numbers_and_gaps_get_letters():
  pytest.importorskip("matplotlib")
  from experiments.figures import style

  plots = style.pyplot()
  figure, axis = plots.subplots()
  missing = style.Missing()
  style.bars(
    axis,
    ["one", "two"],
    {
      "untrained": [Cell(value=0.25), Cell(fill="first")],
      "rri": [Cell(value=0.5, paper=0.4), Cell(fill="second", paper=0.3)],
    },
    missing,
  )
  heights = [patch.get_height() for patch in axis.patches]
  assert heights == [0.25, 0.5]
  assert missing.listed() == {"a": "first", "b": "second"}
  texts = [text.get_text() for text in axis.texts]
  assert texts == ["a", "b"]
  diamonds = [
    line.get_ydata()[0] for line in axis.lines if line.get_marker() == "D"
  ]
  assert diamonds == [0.4, 0.3]
  plots.close(figure)


def test_looks_differ_in_grey():
  """By lightness, or by a hatch as well."""
  from experiments.figures.style import LOOKS

  def lightness(colour):
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return (0.299 * red + 0.587 * green + 0.114 * blue) / 255

  plain = {n: lightness(k.colour) for n, k in LOOKS.items() if not k.hatch}
  ordered = sorted(plain.values())
  assert min(b - a for a, b in itertools.pairwise(ordered)) > 0.15
  assert len({look.marker for look in LOOKS.values()}) == len(LOOKS)
  hatches = [look.hatch for look in LOOKS.values() if look.hatch]
  assert len(set(hatches)) == len(hatches)


def test_the_commands_end_with_a_code_and_a_sentence(full, tmp_path, capsys):
  assert tables.main([f"--results={full}", f"--out={tmp_path}"]) == 0
  assert "Table 3: HealthBench Professional by use" in capsys.readouterr().out
  assert tables.main([f"--results={tmp_path / 'none'}"]) == 2
  assert "There is no results folder at" in capsys.readouterr().err
