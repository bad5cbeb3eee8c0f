"""The paper's numbers that its text gives, as data: references, never results.

Scores are fractions of 1; `GAINS` are differences RRI less Generation Only
unless the key says otherwise. A number that the text does not give is left out,
and nothing is read off a picture.
"""

from collections.abc import Mapping
from typing import Final

Key = tuple[str, ...]

# (setting, arm, column) of HealthBench Professional.
PROFESSIONAL: Final[Mapping[Key, float]] = {
  ("9b", "generation_only", "score"): 0.424,
  ("9b", "co_evolve_only", "score"): 0.506,
  ("9b", "rri", "score"): 0.533,
  ("9b", "rar", "score"): 0.433,
  ("9b", "evo_rubrics", "score"): 0.493,
  ("9b", "sibyl_sense", "score"): 0.502,
  ("27b", "untrained", "score"): 0.374,
  ("27b", "generation_only", "score"): 0.392,
  ("27b", "rri", "score"): 0.516,
  ("9b", "untrained", "writing"): 0.194,
  ("9b", "generation_only", "writing"): 0.199,
  ("9b", "rri", "writing"): 0.590,
}
# (setting, column): RRI less Generation Only.
GAINS: Final[Mapping[Key, float]] = {
  ("9b", "score"): 0.109,
  ("27b", "score"): 0.124,
  ("all_self", "score"): 0.103,
  ("no_retrieval", "score"): 0.040,
  ("9b", "raw"): 0.110,
  ("27b", "raw"): 0.104,
  ("all_self", "raw"): 0.074,
  ("9b", "writing"): 0.391,
  ("27b", "writing"): 0.147,
  ("all_self", "writing"): 0.259,
  ("9b", "consult"): 0.005,
  ("9b", "research"): 0.005,
  ("9b", "difficult"): 0.186,
  ("9b", "typical"): 0.028,
}
# The same under the benchmark's official judge, by setting.
OFFICIAL_GAINS: Final[Mapping[str, float]] = {
  "9b": 0.116,
  "27b": 0.113,
  "all_self": 0.123,
  "no_retrieval": 0.062,
}
# (benchmark, arm) of the 27B models trained on the clinical description.
TRANSFER: Final[Mapping[Key, float]] = {
  ("prbench_hard", "untrained"): 0.189,
  ("prbench_hard", "generation_only"): 0.201,
  ("prbench_hard", "rri"): 0.255,
  ("profbench", "untrained"): 0.345,
  ("profbench", "generation_only"): 0.392,
  ("profbench", "rri"): 0.425,
  ("healthbench_hard", "untrained"): 0.143,
  ("healthbench_hard", "generation_only"): 0.188,
  ("healthbench_hard", "rri"): 0.246,
}
# RRI less the base model, by column of the transfer figure.
TRANSFER_GAINS: Final[Mapping[str, float]] = {
  "prbench_hard": 0.066,
  "finance": 0.074,
  "legal": 0.056,
  "profbench": 0.080,
  "chemistry": 0.132,
  "consulting": 0.110,
}
# 9B solvers trained on another benchmark's description, less the base model.
OWN_DESCRIPTION_GAINS: Final[Mapping[str, float]] = {
  "prbench_hard": 0.048,
  "profbench": 0.049,
  "medxpertqa": 0.070,
  "text": 0.059,
  "image": 0.083,
}
# (method, setting) of inference-time retrieval, and RRI less the best of them.
INFERENCE: Final[Mapping[Key, float]] = {
  ("imedrag", "9b"): 0.254,
  ("imedrag", "27b"): 0.355,
}
INFERENCE_GAINS: Final[Mapping[str, float]] = {"9b": 0.279, "27b": 0.161}

# Exploit cases. Shares by (domain, category); "all" over the three domains.
# "About a third" and "at most one in a hundred" are rounded as the text is.
CASES: Final[Mapping[str, int]] = {
  "all": 12147,
  "clinical": 7032,
  "finance_law": 3473,
  "expert_reports": 1642,
}
SHARES: Final[Mapping[Key, float]] = {
  ("all", "missed_negatives"): 0.33,
  ("all", "ambiguous_rubrics"): 0.29,
  ("all", "faulty_answer_key"): 0.14,
  ("all", "missed_positives"): 0.01,
  ("clinical", "ambiguous_rubrics"): 0.35,
  ("clinical", "fabricated_citations"): 0.10,
  ("finance_law", "missed_negatives"): 0.39,
  ("expert_reports", "faulty_answer_key"): 0.32,
}
# (solver, category) of the clinical runs; (domain, third, category) over time.
SOLVER_SHARES: Final[Mapping[Key, float]] = {
  ("9b", "missed_negatives"): 0.40,
  ("27b", "missed_negatives"): 0.30,
  ("9b", "ambiguous_rubrics"): 0.30,
  ("27b", "ambiguous_rubrics"): 0.37,
}
PROGRESS_SHARES: Final[Mapping[Key, float]] = {
  ("finance_law", "early", "incorrect_pair"): 0.19,
  ("finance_law", "late", "incorrect_pair"): 0.30,
  ("finance_law", "early", "ambiguous_rubrics"): 0.26,
  ("finance_law", "late", "ambiguous_rubrics"): 0.16,
  ("expert_reports", "early", "faulty_answer_key"): 0.28,
  ("expert_reports", "late", "faulty_answer_key"): 0.35,
}
# The example of the repaired case: mean reward of rollouts.
EXAMPLE: Final = (0.94, 0.48)
