"""What a plan is made of: expectations of models, and lines of calls."""

import dataclasses

from varl_jax.config import EndpointConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assumptions:
  """What is expected of models and cannot be known before; shares are of 1."""

  share_red_team: float = 0.1  # of requests
  share_invalid: float = 0.1  # of written tasks, asked for again
  share_evicted: float = 0.4  # of served tasks
  share_probes_failing: float = 0.6  # of new tasks, so that a repair begins
  share_repaired_twice: float = 0.5  # of repaired tasks
  criteria_added: float = 0.4  # to a rubric on average, by all repairs
  share_groups_exploited: float = 0.1  # of groups
  share_patches_accepted: float = 0.6  # of rounds
  share_attacks_found: float = 0.84  # of attacks; the paper has 247 of 293
  criteria_proposed: float = 2.5  # criteria a round of patching
  share_proposed_negative: float = 0.3  # of those
  criteria_kept: float = 1.5  # criteria of an accepted round
  tokens_task: float = 300
  tokens_answer: float = 600
  tokens_exploit: float = 500
  tokens_criterion: float = 30
  tokens_request: float = 60
  tokens_verdict: float = 60
  tokens_reason: float = 40
  tokens_guidance: float = 400
  tokens_memo: float = 600
  tokens_evidence: float = 4000  # exploits, patches, history
  tokens_block_marks: float = 40  # around a block
  tokens_reasoning: float = 300  # a reply, where effort is asked for


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
  """One kind of call.

  Attributes:
    role: who calls.
    purpose: what for.
    calls: expected a step.
    most: the most a step.
    prompt: tokens read a call.
    reply: tokens written a call.
    formula: how `calls` came about.
    endpoint: who is paid.
  """

  role: str
  purpose: str
  calls: float
  most: float
  prompt: float
  reply: float
  formula: str
  endpoint: EndpointConfig

  @property
  def cost(self) -> float:
    """Expected US dollars a step."""
    return self.calls * self.cost_of_call

  @property
  def most_cost(self) -> float:
    """US dollars a step at most."""
    return self.most * self.cost_of_call

  @property
  def cost_of_call(self) -> float:
    """US dollars."""
    paid = self.endpoint
    return (self.prompt * paid.price_in + self.reply * paid.price_out) / 1e6
