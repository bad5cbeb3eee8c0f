"""Tools by the names that settings give, and what is refused."""

import contextlib
import json

import pytest

from tests.roles.fake_chat import FakeChat
from varl_jax import solver_tools
from varl_jax.config import ConfigError, from_config_dict

CHAT = FakeChat([])


def config(domain="story", **tools):
  return from_config_dict({"domain": domain, "tools": tools})


def opened(made, own=None):
  with contextlib.ExitStack() as stack:
    return solver_tools.open_tools(
      made, chat=CHAT, own=own or {}, notify=print, stack=stack
    )


def test_by_default_there_is_none():
  assert solver_tools.tool_specs(config()) == ()
  assert opened(config()) is None


def test_specs_come_in_the_order_of_their_names():
  made = config(domain="clinical", names="web_search, clinical_search")
  specs = solver_tools.tool_specs(made)
  assert [spec.name for spec in specs] == ["web_search", "clinical_search"]
  schema = specs[0].schema()["function"]
  assert schema["parameters"]["required"] == ["query"]
  json.dumps(schema)


@pytest.mark.parametrize(
  ("tools", "message"),
  [
    ({"names": "lookup", "domain": "clinical"}, "has no tool 'lookup'"),
    ({"names": "clinical_search"}, "retrieval.index"),
    ({"names": "web_search"}, "tools.web_recordings"),
    (
      {"names": "web_search", "web_recordings": "/nowhere/at.jsonl"},
      "no recorded searches",
    ),
    ({"names": "web_search", "web_mode": "record"}, "tools.web_url"),
    (
      {"names": "web_search", "web_mode": "record", "web_url": "ftp://a"},
      "http address",
    ),
    (
      {"names": "web_search", "web_mode": "record", "web_engine": "brave"},
      "tools.web_key_env",
    ),
    ({"names": "lookup", "max_result_tokens": 7}, "at least 8"),
  ],
)
def test_what_cannot_be_used_is_said_in_one_sentence(tools, message):
  with pytest.raises(ConfigError) as caught:
    opened(config(**tools), own={})
  assert message in str(caught.value)
  assert "\n" not in str(caught.value)


def test_a_key_is_read_where_the_settings_say(monkeypatch, tmp_path):
  monkeypatch.setenv("SOME_KEY", "k-secret")
  runner = opened(
    config(
      names="web_search",
      web_mode="record",
      web_engine="brave",
      web_key_env="SOME_KEY",
      web_recordings=str(tmp_path / "s.jsonl"),
    )
  )
  assert runner is not None and set(runner.tools) == {"web_search"}
  assert "k-secret" not in repr(runner)
