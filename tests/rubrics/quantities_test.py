"""Numbers with units: read, compared, computed."""

import pytest

from varl_jax.rubrics.quantities import derivation, equation_for, quantities


def read(text):
  return [
    (q.text, pytest.approx(q.value), dict(q.unit)) for q in quantities(text)
  ]


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("Gives 1,050 mg once.", [("1,050 mg", 1050, {"mg": 1})]),
    (
      "0.5 g or 500 mg",
      [("0.5 g", 500, {"mg": 1}), ("500 mg", 500, {"mg": 1})],
    ),
    (
      "5-10 mg/kg/day",
      [
        ("5 mg/kg/day", 5 / 24, {"mg": 1, "kg": -1, "h": -1}),
        ("10 mg/kg/day", 10 / 24, {"mg": 1, "kg": -1, "h": -1}),
      ],
    ),
    (
      "160/95 mmHg",
      [("160 mmHg", 160, {"mmhg": 1}), ("95 mmHg", 95, {"mmhg": 1})],
    ),
    ("a 7-day course", [("7 day", 168, {"h": 1})]),
    ("5 µg", [("5 ug", 0.005, {"mg": 1})]),
    ("7.0% in 2019", [("7.0 %", 7, {"%": 1}), ("2019", 2019, {})]),
    ("120 mL per hour", [("120 mL per hour", 120, {"ml": 1, "h": -1})]),
    ("stage 3, then 4.", [("3", 3, {}), ("4", 4, {})]),
    ("B12, HbA1c, SGLT2, E11.9, T4", []),
    ("none at all", []),
    ("3 months, 2 meters", [("3 months", 3, {"month": 1}), ("2", 2, {})]),
  ],
)
def test_numbers_are_read_with_their_units(text, expected):
  assert read(text) == expected


def first(text):
  return quantities(text)[0]


@pytest.mark.parametrize(
  ("a", "b", "same"),
  [
    ("0.5 g", "500 mg", True),
    ("1 L", "1000 mL", True),
    ("24 hours", "1 day", True),
    ("10 mg", "10 mL", False),
    ("10 mg", "10", False),
    ("7", "7.0", True),
    ("7.0 %", "7.1 %", False),
  ],
)
def test_equal_values_are_told_from_others(a, b, same):
  assert first(a).same_as(first(b)) == same


@pytest.mark.parametrize(
  ("text", "holds"),
  [
    ("Gives 1,050 mg (15 mg/kg x 70 kg = 1,050 mg).", True),
    ("Gives 1,060 mg (15 mg/kg x 70 kg = 1,060 mg).", False),
    ("States (140 - 40) × 60 / (72 × 1.0) = 83 mL/min.", True),
    ("States (140 - 40) × 60 / (72 × 1.0) = 93 mL/min.", False),
    ("Gets 2 + 3 * 4 = 14.", True),
    ("Gets 2 + 3 * 4 = 20.", False),
    ("Divides: 5 / 0 = 7.", False),
    ("Says that dose = 7 mg.", False),
    ("x = 7", False),
  ],
)
def test_equations_are_executed(text, holds):
  wanted = quantities(text)[-1]
  assert bool(equation_for(wanted, text)) == holds


@pytest.mark.parametrize(
  ("wanted", "given", "known", "found"),
  [
    ("1050 mg", "70 kg", "15 mg/kg", "70 kg x 15 mg/kg = 1050 mg"),
    ("1060 mg", "70 kg", "15 mg/kg", ""),
    ("33 mL/h", "10 kg", "80 mL/kg/day", "10 kg x 80 mL/kg/day = 33 mL/h"),
    ("5 days", "20 mg, 4 mg/day", "", "20 mg / 4 mg/day = 5 days"),
    ("30 mg", "10 mg", "20 mg", "10 mg + 20 mg = 30 mg"),
    ("1050", "70 kg", "15 mg/kg", ""),
    ("1050 mL", "70 kg", "15 mg/kg", ""),
    ("1050 mg", "", "70 kg, 15 mg/kg", ""),
    (
      "3.5 mL",
      "70 kg",
      "5 mg/kg, 100 mg/mL",
      "70 kg x 5 mg/kg / 100 mg/mL = 3.5 mL",
    ),
  ],
)
def test_values_follow_where_units_come_out(wanted, given, known, found):
  assert (
    derivation(first(wanted), quantities(given), quantities(known)) == found
  )
