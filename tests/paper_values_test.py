"""Every constant and default of the paper, against the code that holds it.

Each row is the place in the code, what it has to be, and where it is from.
Settings of runs are fields of `config`; what the paper keeps in code is a Final
of the module that uses it.
"""

import importlib
import inspect

import pytest

from varl_jax.config import Config

# Field of `Config()`, value. Appendix letters are the paper's.
CONFIG = [
  # Scores, spec section 2.
  ("reward.length_weight", 0.0147),
  ("reward.length_center", 2000),
  ("reward.length_unit", 500),
  ("reward.length_adjusted", True),
  ("reward.truncated_score", "zero"),
  # Judge, section 3.
  ("judge.votes", 3),
  # Pool, section 5 (appendix B).
  ("pool.window", 4),
  ("pool.variance_floor", 1e-4),
  ("pool.mean_low", 0.05),
  ("pool.mean_high", 0.88),
  # Admission, section 6 (appendix C).
  ("admission.margin", 0.20),
  ("admission.honest_low", 0.15),
  ("admission.honest_high", 0.92),
  ("admission.rounds", 2),
  ("admission.min_drop", 0.15),
  ("admission.concurrency", 48),
  # Exploit cases and patches, section 7 (appendix C).
  ("patch.epsilon", 0.15),
  ("patch.max_criteria", 5),
  ("patch.rounds", 2),
  ("patch.max_patches_per_task", 6),
  ("patch.min_gap_removed", 0.05),
  ("patch.min_chars", 40),
  ("patch.max_chars", 220),
  ("patch.min_points", 5),
  ("patch.max_points", 10),
  ("patch.max_overlap", 0.6),
  ("patch.re_attack", True),
  # Every group is refereed, and nothing but the referee tells good from bad.
  ("patch.referee_share", 1.0),
  ("discriminator.on", False),
  # Guidance and memo, section 8 (appendix D).
  ("evolution.cases", 20),
  ("evolution.worst_share", 0.5),
  ("evolution.best_share", 0.25),
  ("evolution.max_words", 300),
  ("memo.max_chars", 2400),
  ("memo.target_margin", 0.0),
  ("memo.kappa", 2.0),
  ("memo.tolerance", 0.02),
  ("memo.observations", 2),
  ("memo.min_honest", 0.25),
  # Training and validation, section 9 (appendix E).
  ("train.samples", 8),
  ("train.temperature", 1.0),
  ("train.tasks_per_step", 64),
  ("train.minibatch_tasks", 16),
  ("train.learning_rate", 1e-6),
  ("train.clip_ratio", 0.2),
  ("model.max_prompt", 6144),
  ("model.max_response", 8192),
  ("eval.interval", 5),
  ("eval.temperature", 1.0),
  # Guidance runs at the evaluation interval.
  ("evolution.interval", 5),
]

# Module, Final, value.
CONSTANTS = [
  ("rubrics.scoring", "LENGTH_WEIGHT", 0.0147),
  ("rubrics.scoring", "LENGTH_CENTER", 2000),
  ("rubrics.scoring", "LENGTH_UNIT", 500),
  ("rubrics.shape", "POSITIVE_COUNTS", (2, 3, 4)),
  ("rubrics.shape", "POSITIVE_PROBABILITIES", (0.15, 0.70, 0.15)),
  ("rubrics.shape", "RED_TEAM_COUNTS", (1, 2)),
  ("rubrics.shape", "NEGATIVE_TARGET", 0.75),
  ("rubrics.shape", "GUIDANCE_NEGATIVE_SHARE", 1 / 3),
  ("rubrics.shape", "CONTROLLER_WINDOW", 400),
  ("rubrics.shape", "TARGET_BAND", (0.4, 0.6)),
  ("rubrics.validation", "MIN_CRITERIA", 1),
  ("rubrics.validation", "MAX_CRITERIA", 6),
  ("rubrics.validation", "MAX_PATCHED_CRITERIA", 12),
  ("rubrics.validation", "MAX_ABS_POINTS", 10),
  ("rubrics.similarity", "TRIGRAM", 3),
  ("service.probe", "SALVAGE_MIN_POINTS", 5),
  ("service.probe", "SALVAGE_MAX_POINTS", 10),
  ("service.probe", "SALVAGE_MAX_ADDED", 4),
  ("service.probe", "PROMPT_MAX_ADDED", 3),
  ("service.probe", "TOLERANCE", 1e-9),
  ("service.exploits", "TOLERANCE", 1e-9),
]

# Function, its keyword, the setting whose default it shares.
SHARED_DEFAULTS = [
  ("rubrics.scoring.length_adjusted", "weight", "reward.length_weight"),
  ("rubrics.scoring.length_adjusted", "center", "reward.length_center"),
  ("rubrics.scoring.length_adjusted", "unit", "reward.length_unit"),
  ("service.probe.probe_outcome", "margin", "admission.margin"),
  ("service.probe.probe_outcome", "honest_low", "admission.honest_low"),
  ("service.probe.probe_outcome", "honest_high", "admission.honest_high"),
  ("service.probe.rewrite_accepted", "min_drop", "admission.min_drop"),
  ("service.probe.rewrite_accepted", "honest_low", "admission.honest_low"),
  ("service.probe.rewrite_accepted", "honest_high", "admission.honest_high"),
  ("service.probe.choose_rewrite", "honest_low", "admission.honest_low"),
  ("service.probe.choose_rewrite", "honest_high", "admission.honest_high"),
  ("service.exploits.find_exploit", "epsilon", "patch.epsilon"),
  ("service.memo.memo_objective", "target_margin", "memo.target_margin"),
  ("service.memo.memo_objective", "kappa", "memo.kappa"),
  ("service.memo.memo_objective", "tolerance", "memo.tolerance"),
  ("service.evolution_stats.sample_cases", "count", "evolution.cases"),
  (
    "service.evolution_stats.sample_cases",
    "worst_share",
    "evolution.worst_share",
  ),
  (
    "service.evolution_stats.sample_cases",
    "best_share",
    "evolution.best_share",
  ),
]

ADDRESSING = [
  "the response",
  "the answer",
  "the model",
  "award",
  "deduct",
  "penalise",
  "score",
  "mark",
]


def _setting(path):
  value = Config()
  for name in path.split("."):
    value = getattr(value, name)
  return value


@pytest.mark.parametrize(("path", "value"), CONFIG)
def test_config_defaults(path, value):
  assert _setting(path) == value


@pytest.mark.parametrize(("module", "name", "value"), CONSTANTS)
def test_constants(module, name, value):
  found = getattr(importlib.import_module(f"varl_jax.{module}"), name)
  assert found == value


@pytest.mark.parametrize(("function", "keyword", "path"), SHARED_DEFAULTS)
def test_defaults_of_functions_are_those_of_the_config(function, keyword, path):
  module, _, name = function.rpartition(".")
  found = getattr(importlib.import_module(f"varl_jax.{module}"), name)
  default = inspect.signature(found).parameters[keyword].default
  assert default == _setting(path)


def test_four_updates_a_step():
  train = Config().train
  assert train.tasks_per_step // train.minibatch_tasks == 4


def test_controllers_aim_at_the_stated_shares():
  shape = importlib.import_module("varl_jax.rubrics.shape")
  counts = zip(shape.POSITIVE_COUNTS, shape.POSITIVE_PROBABILITIES, strict=True)
  mean = sum(count * share for count, share in counts)
  assert mean == pytest.approx(shape.POSITIVE_MEAN)
  assert shape.POSITIVES.target == shape.POSITIVE_MEAN
  assert shape.NEGATIVES.target == 0.75
  assert shape.POSITIVES.window == shape.NEGATIVES.window == 400


def test_openings_that_address_the_judge():
  validation = importlib.import_module("varl_jax.rubrics.validation")
  assert set(ADDRESSING) <= set(validation.ADDRESSING)


def test_closed_vocabularies():
  """Sections 7, 8 and 12: the label lists, in the paper's own words."""
  patcher = importlib.import_module("varl_jax.roles.patcher")
  analyst = importlib.import_module("varl_jax.roles.analyst")
  auditor = importlib.import_module("varl_jax.roles.auditor")
  assert set(patcher.EXPLOIT_LABELS) == set(
    "hedge_namedrop task_restatement breadth_padding disjunction_cheapest"
    " keyword_stuffing unhedged_confidence format_compliance safety_boilerplate"
    " negative_absent criterion_ambiguous other none".split()
  )
  assert set(analyst.FAILURE_MODES) == set(
    "knowledge_factual knowledge_specificity hallucinated_specifics safety_miss"
    " premise_uncaught incompleteness calculation instruction_format"
    " language_fidelity verbosity non_answer none".split()
  )
  assert set(analyst.RUBRIC_DEFECTS) == set(
    "none gameable_restates_task untestable_vague conjunctive_overloaded"
    " off_domain targets_format_not_medicine missing_safety_negative"
    " mis_scaled_points".split()
  )
  assert set(analyst.TASK_DEFECTS) == set(
    "none unrealistic ambiguous_underspecified template_generic reveals_rubric"
    " too_easy wrong_use_case".split()
  )
  assert set(analyst.VERDICTS) == set(
    "model_failed_fair_task generator_at_fault model_succeeded".split()
  )
  assert auditor.CATEGORIES == tuple(
    "incorrect_pair faulty_answer_key fabricated_citations missed_negatives"
    " ambiguous_rubrics missed_positives".split()
  )


@pytest.mark.parametrize(
  ("place", "value"),
  [
    ("roles.judge.MIN_AGREEING", 2),
    ("roles.analyst.MAX_GAP_WORDS", 15),
    ("roles.adversary.MAX_CHARS", 2500),
    ("roles.memo_optimizer.MAX_CHARS", 2400),
    ("roles.meta_optimizer.MAX_WORDS", 300),
    ("roles.patcher.MAX_CRITERIA", 5),
    ("roles.generator.TARGET_BAND", (0.4, 0.6)),
    ("service.probe.SALVAGE_MAX_ADDED", 4),
    ("service.probe.PROMPT_MAX_ADDED", 3),
    ("service.probe.SALVAGE_MIN_POINTS", 5),
    ("service.probe.SALVAGE_MAX_POINTS", 10),
  ],
)
def test_constants_of_roles_and_service(place, value):
  module, _, name = place.rpartition(".")
  assert getattr(importlib.import_module(f"varl_jax.{module}"), name) == value


def test_clip_of_the_loss_function():
  losses = importlib.import_module("varl_jax.rl.losses")
  parameters = inspect.signature(losses.grpo_loss).parameters
  assert parameters["clip_ratio"].default == Config().train.clip_ratio == 0.2
