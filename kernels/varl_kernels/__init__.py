"""Accelerator kernels of varl_jax: one folder an operation.

A folder holds `api` (the public function and its choice of backend),
`reference` (plain XLA, which also runs where no kernel is selected) and a file
for each kind of accelerator. A backend chosen by name never falls back.
"""
