"""MedXpertQA: expert-level medical questions with ten options, or five.

As a rubric: one criterion of one point, met when the answer's single final
option is the labelled one. A program reads the option (`options`), so no judge
is needed; the criterion's text lets one decide instead. The label is in no
prompt. The authors decode greedily and ask for a closing phrase, as we do in
words of our own.
"""

import pathlib
from collections.abc import Mapping
from typing import Any, Final

from varl_jax.benchmarks.options import chosen_option
from varl_jax.benchmarks.protocol import (
  Benchmark,
  BenchmarkTask,
  criterion,
  groups_of,
  text_of,
  unclipped,
)
from varl_jax.rubrics.checks import CheckError, CheckRegistry
from varl_jax.types import Message

PAGE: Final = "https://huggingface.co/datasets/TsinghuaC3I/MedXpertQA"
CLOSING: Final = (
  "Think it through, then close with one line that reads `Final answer:` and"
  " the letter of the option you choose."
)


def to_task(row: Mapping[str, Any], source: str) -> BenchmarkTask:
  """Reads a row; options and label each come in two shapes."""
  letters = _letters(row["options"])
  label = _label(row["label"])
  if label not in letters:
    raise ValueError(f"the label {label!r} is none of the options {letters}.")
  images = tuple(map(str, row.get("images") or ()))
  question = text_of(row, "question")
  return BenchmarkTask(
    task_id=text_of(row, "id"),
    prompt=(Message(role="user", content=f"{question}\n\n{CLOSING}"),),
    criteria=(
      criterion(
        f"Chooses option {label} as its single final answer, and no other"
        " option beside it.",
        1,
        check=f"option({label}, {letters})",
      ),
    ),
    groups=groups_of(
      part="image" if images else "text",
      body_system=row.get("body_system"),
      medical_task=row.get("medical_task"),
      question_type=row.get("question_type"),
    ),
    images=images,
  )


def _letters(options: Any) -> str:
  if isinstance(options, Mapping):
    found = [key for key, text in options.items() if text is not None]
  else:
    found = [item["letter"] for item in options]
  letters = "".join(str(letter).strip() for letter in found)
  if not letters.isalpha() or len(set(letters)) != len(found):
    raise ValueError(f"options are named by letters, got {found!r:.80}.")
  return letters.upper()


def _label(value: Any) -> str:
  found = [value] if isinstance(value, str) else list(value)
  if len(found) != 1:
    raise ValueError(f"the label is one letter, got {value!r:.60}.")
  return str(found[0]).strip().upper()


def option(answer: str, letter: str, letters: str) -> bool:
  """The answer's single final option is this one of these."""
  if len(letter) != 1 or letter not in letters:
    raise CheckError(f"{letter!r} is no letter of {letters!r}.")
  return chosen_option(answer, letters) == letter


CHECKS: Final = CheckRegistry(checks={"option": option})


def image_files(
  task: BenchmarkTask, folder: pathlib.Path
) -> tuple[pathlib.Path, ...]:
  """The files of a task's images, in `folder` or an `images` folder near it.

  Raises:
    ValueError: one is not there.
  """
  places = (folder / "images", folder, folder.parent / "images")
  found = []
  for name in task.images:
    file = next((p / name for p in places if (p / name).is_file()), None)
    if file is None:
      raise ValueError(
        f"The image {name} of {task.task_id} is not in {folder / 'images'};"
        " unpack the benchmark's images there."
      )
    found.append(file)
  return tuple(found)


def _make(
  name: str, title: str, files: tuple[str, ...], size: int
) -> Benchmark:
  return Benchmark(
    name=name,
    title=title,
    to_task=to_task,
    page=PAGE,
    files=files,
    size=size,
    measures=unclipped,
    domain="medical_exam",
    checks=CHECKS,
  )


_TEXT: Final = "Text/test*|*medxpertqa_text*"
_IMAGE: Final = "MM/test*|*medxpertqa_mm*"
ALL: Final = (
  _make("medxpertqa", "MedXpertQA", (_TEXT, _IMAGE), 4450),
  _make("medxpertqa_text", "MedXpertQA text", (_TEXT,), 2450),
  _make("medxpertqa_image", "MedXpertQA images", (_IMAGE,), 2000),
)
