"""What the machine gives: a matrix product in float32, and reading memory."""

from typing import Any

import jax
import jax.numpy as jnp

from experiments.speed.contestants.loop import Run, serve

SIZE, READ = 2048, 2**26


def prepare(case: dict[str, Any]) -> tuple[Run, dict[str, Any]]:
  """Sample 2 k is the product, sample 2 k + 1 the read; each says its rate."""
  del case
  product = jax.jit(lambda a, b: a @ b)
  total = jax.jit(jnp.sum)
  square = jax.random.normal(jax.random.key(0), (SIZE, SIZE))
  line = jnp.ones(READ)
  times = 4

  def run(number: int) -> dict[str, float]:
    if number % 2:
      jax.block_until_ready([total(line) for _ in range(times)])
      return {"work": 4.0 * READ * times}
    jax.block_until_ready([product(square, square) for _ in range(times)])
    return {"work": 2.0 * SIZE**3 * times}

  for number in range(2):
    run(number)
  return run, {"versions": {"jax": jax.__version__}}


if __name__ == "__main__":
  serve(prepare)
