"""Reinforcement learning on rubrics that are repaired while it runs, in JAX."""
