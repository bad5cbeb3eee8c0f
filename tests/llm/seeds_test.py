"""Seeds by name."""

from varl_jax.llm.seeds import derive_seed


def test_seeds_are_stable_and_in_range():
  assert derive_seed(0, "step1/judge/vote0") == 1810378958
  seeds = {derive_seed(s, f"op{i}") for s in range(20) for i in range(50)}
  assert len(seeds) == 1000
  assert all(0 <= seed < 2**31 for seed in seeds)


def test_seed_and_operation_do_not_run_together():
  assert derive_seed(1, "1/a") != derive_seed(11, "/a")
