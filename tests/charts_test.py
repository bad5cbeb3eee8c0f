"""Charts stay well formed and inside their box for any numbers."""

import xml.etree.ElementTree as ElementTree

import pytest

from varl_jax import charts
from varl_jax.charts import Series, axis_ticks, line_chart


def _series(*values, label="reward", tone="reward"):
  return Series(label=label, tone=tone, points=tuple(enumerate(values)))


@pytest.mark.parametrize(
  ("low", "high", "ticks"),
  [
    (0.0, 1.0, (0.0, 0.25, 0.5, 0.75, 1.0)),
    (0.21, 0.74, (0.2, 0.4, 0.6, 0.8)),
    (-0.1, 0.5, (-0.2, 0.0, 0.2, 0.4, 0.6)),
    (0, 341, (0, 100, 200, 300, 400)),
  ],
)
def test_ticks_are_round_and_cover_the_values(low, high, ticks):
  assert axis_ticks(low, high) == ticks


@pytest.mark.parametrize(
  "values",
  [(0.5,), (0.0, 0.0), (3, 3, 3), (-1e-9, 1e9), (1e-7, 2e-7), (-5, -4)],
)
def test_every_point_is_inside_the_box(values):
  root = ElementTree.fromstring(line_chart("t", [_series(*values)]))
  for dot in root.iter("circle"):
    assert 0 <= float(dot.attrib["cx"]) <= charts.WIDTH
    assert 0 <= float(dot.attrib["cy"]) <= charts.HEIGHT


def test_names_are_escaped_and_said_to_screen_readers():
  svg = line_chart("<b>&", [_series(1, 2, label='"<i>')], unit=" <u>")
  root = ElementTree.fromstring(svg)
  assert root.attrib["aria-label"] == '<b>&: "<i> from 1 to 2 <u>.'


def test_close_line_ends_keep_their_labels_apart():
  svg = line_chart(
    "t", [_series(1, 1.0, label="a"), _series(2, 1.0, label="b")]
  )
  ends = [
    float(text.attrib["y"])
    for text in ElementTree.fromstring(svg).iter("text")
    if text.attrib["class"].startswith("end")
  ]
  assert abs(ends[0] - ends[1]) >= 12


def test_nothing_measured_is_no_chart():
  assert line_chart("t", [_series()]) == ""


@pytest.mark.parametrize(
  ("value", "text"),
  [
    (0, "0"),
    (0.5, "0.500"),
    (-0.046, "\u22120.046"),
    (3.14159, "3.14"),
    (251.0, "251"),
    (9398.2, "9,398"),
    (10849, "10.8k"),
    (1234567, "1,234.6k"),
    (0.00004, "4.0e-05"),
  ],
)
def test_numbers_are_short(value, text):
  assert charts.number(value) == text
