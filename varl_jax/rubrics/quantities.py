"""Numbers with units in a text, compared and computed with.

Units of mass, volume, time and amount are brought to one each, so that 0.5 g
equals 500 mg and 15 mg/kg times 70 kg is 1050 mg. Kilograms stay apart: in
dosing they are the patient's weight.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

# Canonical unit, factor, and how that is written.
_TABLE: Final = """
mg 1 mg milligram milligrams
mg 1000 g gram grams
mg 0.001 mcg ug microgram micrograms
mg 0.000001 ng nanogram nanograms
kg 1 kg kilogram kilograms
ml 1 ml cc milliliter milliliters
ml 100 dl
ml 1000 l liter liters litre litres
h 1 h hr hrs hour hours
h 0.016666666666666666 min minute minutes
h 0.0002777777777777778 s sec second seconds
h 24 d day days
h 168 week weeks
month 1 month months
month 12 year years
mmol 1 mmol
mmol 0.001 umol
mmol 1000 mol
meq 1 meq
iu 1 iu unit units
% 1 % percent
mmhg 1 mmhg
bpm 1 bpm
mm 1 mm
mm 10 cm
mm 1000 m
m2 1 m2
"""
UNITS: Final[Mapping[str, tuple[str, float]]] = {
  name: (row[0], float(row[1]))
  for row in map(str.split, _TABLE.strip().splitlines())
  for name in row[2:]
}
_NAMES: Final = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
_DIGITS: Final = r"(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)"
# A digit inside a name (B12, SGLT2, E11.9) is no number.
_NUMBER: Final = rf"(?<![\w.,]){_DIGITS}"
_PER: Final = r"\s?(?:/|\bper\b)\s?"
_UNIT: Final = rf"((?:{_NAMES})(?:{_PER}(?:{_NAMES}))*)(?![a-z0-9])"
_QUANTITY: Final = re.compile(
  rf"{_NUMBER}(?:\s?(?:-|–|/|to|and|or)\s?{_DIGITS})?(?:[\s-]?{_UNIT})?(?!\w)",
  re.I,
)
_EQUALS: Final = re.compile(rf"\s*=\s*(?={_NUMBER})")
# Where a computation may begin.
_OPENING: Final = re.compile(r"(?<![\d.,\w])(?=[\d(])")
# Characters before the sign.
_LONGEST: Final = 120
# Most known quantities that are combined.
_MOST_KNOWN: Final = 60
_OPERATORS: Final = {"×": "*", "x": "*", "·": "*", "÷": "/", "−": "-", "–": "-"}
# How far a printed number may be from the exact one, beside its last digit.
_RELATIVE: Final = 0.005

Dimensions = tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantity:
  """A number as it stands in a text.

  Attributes:
    text: as written, with its unit.
    value: in canonical units.
    unit: canonical units with their powers, sorted; () for a bare number.
    slack: half of the last digit written, in canonical units.
  """

  text: str
  value: float
  unit: Dimensions = ()
  slack: float = 0.0

  def equals(self, value: float, unit: Dimensions) -> bool:
    """Whether a computed value is this one, as far as it is printed."""
    near = max(self.slack, _RELATIVE * abs(self.value))
    return self.unit == unit and abs(self.value - value) <= near + 1e-12

  def same_as(self, other: "Quantity") -> bool:
    """Whether two texts name the same value."""
    return self.unit == other.unit and math.isclose(
      self.value, other.value, rel_tol=1e-9, abs_tol=1e-12
    )


def quantities(text: str) -> list[Quantity]:
  """The numbers of a text in order; both ends of a range, with its unit."""
  plain = text.replace("µ", "u").replace("μ", "u").replace("²", "2")
  found = []
  for match in _QUANTITY.finditer(plain):
    first, second, unit = match[1], match[2], match[3]
    for number in filter(None, (first, second)):
      found.append(_quantity(number, unit or ""))
  return found


def _quantity(number: str, unit: str) -> Quantity:
  value = float(number.replace(",", ""))
  decimals = len(number.partition(".")[2])
  factor, powers = 1.0, {}
  for place, name in enumerate(re.split(_PER, unit.lower())):
    if name:
      canonical, scale = UNITS[name]
      power = 1 if place == 0 else -1
      factor *= scale**power
      powers[canonical] = powers.get(canonical, 0) + power
  return Quantity(
    text=f"{number} {unit}".strip(),
    value=value * factor,
    unit=_dimensions(powers),
    slack=0.5 * 10**-decimals * factor,
  )


def _dimensions(powers: Mapping[str, int]) -> Dimensions:
  return tuple(sorted((n, p) for n, p in powers.items() if p))


def equation_for(wanted: Quantity, text: str) -> str:
  """The computation in a text that gives a quantity, "" for none.

  `70 kg x 15 mg/kg = 1050 mg` is executed; one that comes out otherwise does
  not count.
  """
  bare = dataclasses.replace(
    wanted, value=float(_number(wanted)), unit=(), slack=_slack(wanted)
  )
  for match in _EQUALS.finditer(text):
    result = quantities(text[match.end() :])[:1]
    if not result or not result[0].same_as(wanted):
      continue
    left = text[max(0, match.start() - _LONGEST) : match.start()]
    for opening in _OPENING.finditer(left):
      value = _executed(left[opening.start() :])
      if value is not None and bare.equals(value, ()):
        return f"{left[opening.start() :].strip()} = {wanted.text}"
  return ""


def _number(quantity: Quantity) -> str:
  return quantity.text.split()[0].replace(",", "")


def _slack(quantity: Quantity) -> float:
  return 0.5 * 10 ** -len(_number(quantity).partition(".")[2])


def _executed(text: str) -> float | None:
  """The value of a sum or product of numbers; units in it are passed over."""
  plain = re.sub(r"(?<=\d),(?=\d{3})", "", text)
  plain = re.sub(rf"(?<=[\d)])\s*{_UNIT}", "", plain, flags=re.I)
  plain = "".join(_OPERATORS.get(c, c) for c in plain)
  if not re.fullmatch(r"[\d\s.+\-*/()]+", plain):
    return None
  return _sum(re.findall(r"\d+(?:\.\d+)?|[+\-*/()]", plain))


def _sum(tokens: list[str]) -> float | None:
  """Evaluates by precedence; None for what is no computation."""
  numbers: list[float] = []
  operators: list[str] = []
  order = {"+": 1, "-": 1, "*": 2, "/": 2}

  def reduce() -> None:
    b, a, operator = numbers.pop(), numbers.pop(), operators.pop()
    numbers.append(
      {"+": a + b, "-": a - b, "*": a * b}.get(
        operator, a / b if b else math.nan
      )
    )

  try:
    for token in tokens:
      if token not in "+-*/()":
        numbers.append(float(token))
      elif token == "(":
        operators.append(token)
      elif token == ")":
        while operators[-1] != "(":
          reduce()
        operators.pop()
      else:
        while operators and order.get(operators[-1], 0) >= order[token]:
          reduce()
        operators.append(token)
    while operators:
      reduce()
  except (IndexError, KeyError):
    return None
  return numbers[0] if len(numbers) == 1 and math.isfinite(numbers[0]) else None


def derivation(
  wanted: Quantity, given: Iterable[Quantity], known: Iterable[Quantity]
) -> str:
  """How a quantity with a unit follows from others, "" if it does not.

  Tried are products and quotients of two or three and sums of two, where the
  units come out right. Bare numbers are not derived: chance finds them all.

  Args:
    wanted: the quantity.
    given: of the case at hand; at least one of these must take part.
    known: of the references.
  """
  if not wanted.unit:
    return ""
  given = _distinct(given)
  held = _distinct([*given, *known])[:_MOST_KNOWN]
  for count in (2, 3):
    for places in itertools.combinations(range(len(held)), count):
      if places[0] >= len(given):
        break
      for text, value, unit in _combined([held[place] for place in places]):
        if wanted.equals(value, unit):
          return f"{text} = {wanted.text}"
  return ""


def _distinct(found: Iterable[Quantity]) -> list[Quantity]:
  """Those with a unit, each value once."""
  return list({(q.value, q.unit): q for q in found if q.unit}.values())


def _combined(
  chosen: Sequence[Quantity],
) -> Iterator[tuple[str, float, Dimensions]]:
  a, b = chosen[:2]
  if len(chosen) == 2 and a.unit == b.unit:
    yield f"{a.text} + {b.text}", a.value + b.value, a.unit
    yield f"{a.text} - {b.text}", a.value - b.value, a.unit
    yield f"{b.text} - {a.text}", b.value - a.value, a.unit
  for signs in itertools.product((1, -1), repeat=len(chosen)):
    if max(signs) < 0 or any(
      q.value == 0 and s < 0 for q, s in zip(chosen, signs)
    ):
      continue
    value = math.prod(q.value**s for q, s in zip(chosen, signs))
    powers: dict[str, int] = {}
    for quantity, sign in zip(chosen, signs):
      for name, power in quantity.unit:
        powers[name] = powers.get(name, 0) + sign * power
    text = " ".join(
      f"{'x' if s > 0 else '/'} {q.text}"
      for s, q in sorted(zip(signs, chosen), key=lambda pair: -pair[0])
    )
    yield text.removeprefix("x "), value, _dimensions(powers)
