"""Which form of an operation runs.

`reference` is plain XLA, `tpu` a Pallas kernel compiled by Mosaic, `gpu` one
compiled by Triton. `auto` is the form that the environment variable
VARL_KERNELS names, or else that of the platform that jax computes on.
"""

import os
from typing import Final

import jax

BACKENDS: Final = ("auto", "reference", "tpu", "gpu")
_OF_PLATFORM: Final = {"cpu": "reference", "tpu": "tpu", "gpu": "gpu"}


def choose(backend: str, *, interpret: bool = False) -> str:
  """The form to run, see above for `auto`.

  A form that is named is the one that runs, or the call fails.

  Args:
    backend: one of `BACKENDS`.
    interpret: whether the kernel is to be interpreted.

  Raises:
    ValueError: an unknown backend or platform, or nothing to interpret.
  """
  if backend == "auto":
    backend = os.environ.get("VARL_KERNELS", "auto")
  if backend not in BACKENDS:
    raise ValueError(
      f"Unknown backend {backend!r}; there are {', '.join(BACKENDS)}."
    )
  if backend == "auto":
    platform = jax.default_backend()
    if platform not in _OF_PLATFORM:
      raise ValueError(
        f"No kernel was written for the platform {platform!r}; name a backend,"
        " such as 'reference'."
      )
    backend = _OF_PLATFORM[platform]
  if interpret and backend == "reference":
    raise ValueError(
      "The reference is no kernel and cannot be interpreted; name the backend"
      " 'tpu' or 'gpu'."
    )
  return backend
