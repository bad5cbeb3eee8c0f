"""A loaded model and the learners that share it.

With adapters the trunk lies in memory once, however many learners there are;
without them there is one learner, and it trains the trunk itself.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from varl_jax.companions import Companion
from varl_jax.config import Config, ConfigError
from varl_jax.frozen_models import wants_self
from varl_jax.local_models import LoadedModel
from varl_jax.methods.learners import LearnerSpec
from varl_jax.models import lora, sharding
from varl_jax.models.loading import adapter_folder, load_model
from varl_jax.models.lora_folder import load_adapter
from varl_jax.models.registry import CausalModel, make_model
from varl_jax.models.tokenizer import Tokenizer
from varl_jax.models.turns import Turns
from varl_jax.rl.train_step import Learner
from varl_jax.rollouts import RolloutWorker
from varl_jax.sampling.policy_sampler import PolicySampler
from varl_jax.tool_rollouts import ToolUse
from varl_jax.types import Message


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trunk:
  """A loaded model and what its learners share."""

  config: Config
  shape: Any
  model: CausalModel
  params: Any
  tokenizer: Tokenizer
  mesh: Mesh | None
  tools: ToolUse | None
  turns: Turns = dataclasses.field(default_factory=Turns)

  @property
  def frozen(self) -> LoadedModel | None:
    """The weights as they were loaded, where roles want them."""
    if not wants_self(self.config):
      return None
    return LoadedModel(
      model=self.model,
      params=self.params,
      tokenizer=self.tokenizer,
      dtype=self.config.model.compute_dtype,
      mesh=self.mesh,
      axes=self.model.axes(),
    )

  @property
  def forbidden(self) -> frozenset[int]:
    """Ids that are never sampled."""
    found = frozenset(self.tokenizer.forbidden_ids)
    return (
      found if self.tools is None else found | self.tools.turns.forbidden_ids
    )

  def weights(self, spec: LearnerSpec) -> tuple[Any, Any]:
    """A learner's parameters and their logical axes; the trunk is shared."""
    axes = self.model.axes()
    if not spec.lora.rank:
      return self.params, axes
    if spec.start:
      folder = adapter_folder(spec.start)
      adapter = load_adapter(folder, self.shape, spec.lora)
    else:
      key = jax.random.key(self.config.seed)
      adapter = lora.init(self.params, axes, spec.lora, key)
    params = lora.attach(self.params, adapter, axes)
    return params, {**axes, **lora.lora_axes(axes, spec.lora)}

  def learner(self, spec: LearnerSpec, axes: Any) -> Learner:
    """Updates the weights of a learner.

    Its first state takes the weights over, so that they exist once, but where
    roles go on reading them.
    """
    settings, train = self.config.model, self.config.train
    return Learner(
      hidden_fn=self.model.hidden,
      head_fn=self.model.lm_head_weight,
      vocab_size=self.shape.vocab_size,
      forbidden_ids=sorted(self.forbidden),
      config=spec.train,
      importance_cap=train.importance_cap if train.staleness else None,
      mesh=self.mesh,
      axes=axes if self.mesh is not None else None,
      owns_params=bool(spec.lora.rank) or not wants_self(self.config),
      longest=settings.max_prompt + spec.max_response,
      widest=spec.max_response,
      turns=self.turns,
    )

  def worker(
    self,
    spec: LearnerSpec,
    learner: Learner,
    axes: Any,
    *,
    temperature: float,
    system: Message,
    tools: ToolUse | None,
  ) -> RolloutWorker:
    """Samples a learner."""
    settings = self.config.model
    try:
      sampler = PolicySampler(
        whole=learner.whole,
        axes=axes,
        mesh=self.mesh,
        model=self.model,
        stop_ids=self.tokenizer.stop_ids,
        forbidden_ids=self.forbidden,
        max_prompt=settings.max_prompt,
        max_new=spec.max_response,
        temperature=temperature,
        seed=self.config.seed,
        continues=tools is not None,
        turns=self.turns,
      )
    except ValueError as error:
      raise ConfigError(f"The model cannot be sampled so: {error}") from error
    return RolloutWorker(
      sampler=sampler,
      tokenizer=self.tokenizer,
      system=system,
      max_prompt=settings.max_prompt,
      reasoning=settings.reasoning,
      tools=tools,
    )

  def companion(self, spec: LearnerSpec) -> Companion:
    """A learner beside the policy; its prompts bring their system message."""
    params, axes = self.weights(spec)
    learner = self.learner(spec, axes)
    return Companion(
      name=spec.name,
      worker=self.worker(
        spec,
        learner,
        axes,
        temperature=spec.train.temperature,
        system=Message(role="system", content=""),
        tools=None,
      ),
      learner=learner,
      params=params,
      train=spec.train,
      max_response=spec.max_response,
    )


def load_trunk(
  config: Config,
  *,
  adapters: bool,
  tools: Callable[[Tokenizer], ToolUse | None],
) -> Trunk:
  """Loads the model onto the config's mesh; compiles nothing yet.

  Args:
    config: the run's settings.
    adapters: whether they alone are trained; the trunk is then held in the
      compute type.
    tools: how the policy uses tools, by its tokenizer.
  """
  small = math.prod(dataclasses.astuple(config.mesh)) == 1
  mesh = None if small else sharding.make_mesh(config.mesh)
  shape, params, tokenizer = load_model(
    config.model.path,
    dtype=config.model.compute_dtype if adapters else "float32",
    shardings=None
    if mesh is None
    else lambda axes, shapes: sharding.shardings(axes, shapes, mesh),
  )
  model = make_model(
    shape, dtype=config.model.compute_dtype, remat=config.model.remat
  )
  return Trunk(
    config=config,
    shape=shape,
    model=model,
    params=params,
    tokenizer=tokenizer,
    mesh=mesh,
    tools=tools(tokenizer),
  )
