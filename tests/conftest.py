"""Tests run on the CPU, and the same way every time."""

import os

import hypothesis

# Set JAX_PLATFORMS to test on an accelerator; jax reads it when it loads.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

hypothesis.settings.register_profile(
  "repeatable", derandomize=True, deadline=None, database=None
)
hypothesis.settings.load_profile("repeatable")
