"""Settings of an evaluation where no config file is named: the defaults.

`--config.endpoints.judge` is the judge's server, `--config.endpoints.roles` the
server of the model that answers, `--config.model` and `--config.mesh` are how a
local checkpoint is loaded.
"""

import ml_collections

from varl_jax.config import Config


def get_config() -> ml_collections.ConfigDict:
  """The defaults."""
  return ml_collections.ConfigDict(Config(name="evaluation").to_dict())
