"""Synthetic rows of each benchmark's shape; no real item is in them."""

import json
import random

CANARY = "CANARY 00000000-made-up"


def write_rows(path, rows):
  """A JSONL file of rows; returns its path."""
  text = "".join(json.dumps(row) + "\n" for row in rows)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text, encoding="utf-8")
  return path


def healthbench(name="a", points=(5, -3), tags=("theme:one",), item_tags=()):
  """A row of HealthBench; `item_tags` has a list a criterion."""
  item_tags = item_tags or [["axis:accuracy"]] * len(points)
  return {
    "prompt_id": name,
    "prompt": [
      {"role": "user", "content": f"Question {name}?"},
      {"role": "assistant", "content": "Which one?"},
      {"role": "user", "content": "The {first} one."},
    ],
    "rubrics": [
      {"criterion": f"Says {index} of {name}.", "points": p, "tags": found}
      for index, (p, found) in enumerate(zip(points, item_tags, strict=True))
    ],
    "example_tags": list(tags),
    "ideal_completions_data": None,
    "canary": CANARY,
  }


def professional(name="a", points=(7, -5), *, bare=False, **fields):
  """A row of HealthBench Professional, the conversation bare or not."""
  turns = [{"role": "user", "content": f"Case {name}."}]
  return {
    "id": name,
    "conversation": turns if bare else {"messages": turns},
    "rubric_items": [
      {"criterion_text": f"States fact {index} of {name}.", "points": p}
      for index, p in enumerate(points)
    ],
    "use_case": "consult",
    "type": "good_faith",
    "difficulty": "typical",
    "specialty": "cardiology",
    "physician_response": "A physician wrote this.",
    "canary_string": CANARY,
  } | fields


def professional_set(count, *, seed=0):
  """A whole set of rows with four criteria each."""
  rng = random.Random(seed)
  return [
    professional(
      f"hbp-{index:04d}",
      (*(rng.choice((3, 5, 7, 10)) for _ in range(3)), -6),
      bare=index % 2 == 1,
      use_case=("consult", "writing", "research")[index % 3],
      type=("good_faith", "red_teaming")[index % 2],
      difficulty=("difficult", "typical")[index % 2],
      specialty=f"specialty {index % 26}",
    )
    for index in range(count)
  ]


WEIGHT_FIELDS = (
  "critically_important_weight",
  "important_weight",
  "slightly_important_weight",
  "slightly_detrimental_weight",
  "detrimental_weight",
  "critically_detrimental_weight",
)


def prbench_item(title, kind, **weights):
  """A criterion of PRBench; fields that are not given are null."""
  return {
    "id": title,
    "title": title,
    "annotations": {
      "criteria_category": "Risk",
      "criteria_description": "Not what is graded.",
      "weight_class": kind,
      **dict.fromkeys(WEIGHT_FIELDS),
      **weights,
    },
  }


def prbench(name="a", items=None, *, turns=2, field="Finance"):
  """A row of PRBench with `turns` turns of the user."""
  row = {
    "task": name,
    "turns": turns,
    "field": field,
    "topic": "Taxes",
    "expert": "somebody",
    "scratchpad": "Notes.",
    "rubric": items
    if items is not None
    else [
      prbench_item("Right.", "important", important_weight=5),
      prbench_item("Wrong.", "detrimental", detrimental_weight=-4),
    ],
  }
  for index in range(10):
    used = index < turns
    row[f"prompt_{index}"] = f"Prompt {index}." if used else None
    row[f"response_{index}"] = (
      f"Response {index}." if index < turns - 1 else None
    )
    row[f"model_{index}"] = None
    row[f"reference_texts_{index}"] = (
      [f"Text {index}."] if used and index == 1 else []
    )
  return row


def profbench(name="a", domain="Physics PhD", weights=("Critical", "Minor")):
  """A row of ProfBench."""
  return {
    "task_id": name,
    "domain": domain,
    "prompt": f"Write the report {name}.",
    "filepaths": [],
    "rubrics": [
      {
        "criterion_description": f"Has {index} of {name}.",
        "criterion_weight": weight,
        "criterion_type": ["Reasoning"],
      }
      for index, weight in enumerate(weights)
    ],
  }


def medxpertqa(name="Text-0", label="C", *, listed=False, images=(), **fields):
  """A row of MedXpertQA; options and label as objects or as lists."""
  letters = "ABCDE" if images else "ABCDEFGHIJ"
  options = {letter: f"Drug {letter}" for letter in letters}
  row = {
    "id": name,
    "question": f"Which one for {name}?\nAnswer Choices: (A) Drug A ...",
    "options": [{"letter": k, "content": v} for k, v in options.items()]
    if listed
    else options,
    "label": [label] if listed else label,
    "medical_task": "Treatment",
    "body_system": "Cardiovascular",
    "question_type": "Reasoning",
  }
  if images:
    row["images"] = list(images)
  return row | fields
