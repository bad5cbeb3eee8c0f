"""Shapes of the Qwen3.5 and Qwen3.6 text models."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen35Config:
  """Shape of a model.

  Attributes:
    rotary_dim: leading dimensions of a head that are rotated.
    delta_k_heads: key heads of a delta layer, each `delta_k_dim` wide.
    delta_v_heads: its value heads, each `delta_v_dim` wide.
    conv_width: tokens under the delta layers' convolutions.
    interval: every interval-th layer attends.
  """

  vocab_size: int
  hidden_size: int
  intermediate_size: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  rotary_dim: int
  delta_k_heads: int
  delta_v_heads: int
  delta_k_dim: int = 128
  delta_v_dim: int = 128
  conv_width: int = 4
  interval: int = 4
  rope_theta: float = 1e7
  rms_eps: float = 1e-6
  tie_embeddings: bool = False
  max_position: int = 262144

  def __post_init__(self):
    for name, of in (
      ("num_heads", "num_kv_heads"),
      ("delta_v_heads", "delta_k_heads"),
      ("num_layers", "interval"),
    ):
      whole, part = getattr(self, name), getattr(self, of)
      if whole % part:
        raise ValueError(f"{name} ({whole}) is a multiple of {of} ({part}).")
    if self.interval < 2:
      raise ValueError(f"interval is at least 2, got {self.interval}.")
    if self.rotary_dim % 2 or not 0 < self.rotary_dim <= self.head_dim:
      raise ValueError(
        f"rotary_dim is even and at most head_dim ({self.head_dim}), got"
        f" {self.rotary_dim}."
      )

  @property
  def num_params(self) -> int:
    """Number of weights."""
    width = self.hidden_size
    shared = 3 * width * self.intermediate_size + 2 * width
    heads = self.num_heads * self.head_dim
    kv = self.num_kv_heads * self.head_dim
    attention = width * (3 * heads + 2 * kv) + 2 * self.head_dim
    keys = self.delta_k_heads * self.delta_k_dim
    values = self.delta_v_heads * self.delta_v_dim
    delta = width * (2 * keys + 3 * values + 2 * self.delta_v_heads)
    delta += self.conv_width * (2 * keys + values)
    delta += 2 * self.delta_v_heads + self.delta_v_dim
    blocks = self.num_layers // self.interval
    tables = 1 if self.tie_embeddings else 2
    return (
      self.num_layers * shared
      + blocks * (attention + (self.interval - 1) * delta)
      + tables * self.vocab_size * width
      + width
    )


def qwen3_5_9b() -> Qwen35Config:
  """The shape of Qwen3.5-9B's text model."""
  return Qwen35Config(
    vocab_size=248320,
    hidden_size=4096,
    intermediate_size=12288,
    num_layers=32,
    num_heads=16,
    num_kv_heads=4,
    head_dim=256,
    rotary_dim=64,
    delta_k_heads=16,
    delta_v_heads=32,
  )


def qwen3_6_27b() -> Qwen35Config:
  """The shape of Qwen3.6-27B's text model."""
  return Qwen35Config(
    vocab_size=248320,
    hidden_size=5120,
    intermediate_size=17408,
    num_layers=64,
    num_heads=24,
    num_kv_heads=4,
    head_dim=256,
    rotary_dim=64,
    delta_k_heads=16,
    delta_v_heads=48,
  )
