"""The error of everything that reads models from disk."""


class ModelError(Exception):
  """A model that cannot be used; one sentence says why and what to do."""
