"""The three collections of the reference database (spec section 1).

All lie in one build: a collection is a choice of sources.
"""

from typing import Final

# What new requests start from.
SEEDS: Final = ("statpearls", "dailymed", "medlineplus", "icd10cm")
# What task and rubric are written from.
GROUNDING: Final = (
  *SEEDS,
  "medrag_textbooks",
  "medrag_pubmed",
  "medrag_wikipedia",
  "medrag_statpearls",
  "pubmedqa",
  "pmc_vqa",
  "climb",
)
# What the solver's clinical search reads.
SOLVER_SEARCH: Final = (*SEEDS, "pubmed")

COLLECTIONS: Final = {
  "seeds": SEEDS,
  "grounding": GROUNDING,
  "solver_search": SOLVER_SEARCH,
}
