"""The command serves a real model, told by a client and by a signal."""

import os
import pathlib
import re
import signal
import subprocess
import sys

import httpx
import openai
import pytest

ROOT = pathlib.Path(__file__).parents[1]


def start(*flags):
  paths = [str(ROOT), str(ROOT / "kernels")]
  return subprocess.Popen(
    [sys.executable, "-m", "varl_jax.model_server", *flags],
    env={
      **os.environ,
      "PYTHONPATH": os.pathsep.join(paths),
      "JAX_PLATFORMS": "cpu",
    },
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


@pytest.fixture(scope="module")
def url():
  server = start(
    "--model=story", "--port=0", "--slots=4", "--max_prompt=64", "--max_new=24"
  )
  with server:
    line = server.stdout.readline()
    found = re.search(r"Serving story at (\S+)", line)
    if found is None:
      server.kill()
      raise AssertionError(line + server.stderr.read())
    yield found[1]
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0, server.stderr.read()


def test_a_model_answers_the_same_when_asked_again(url):
  asked = {
    "model": "story",
    "messages": [{"role": "user", "content": "write a story about gus ."}],
    "n": 3,
    "seed": 4,
    "logprobs": True,
  }
  with openai.OpenAI(base_url=url, api_key="none") as client:
    first, again = (client.chat.completions.create(**asked) for _ in range(2))
  texts = [choice.message.content for choice in first.choices]
  assert texts == [choice.message.content for choice in again.choices]
  assert len(set(texts)) > 1 and all(texts)
  words = first.choices[0].logprobs.content
  assert "".join(word.token for word in words).split()
  assert all(word.logprob <= 0 for word in words)


def test_its_description_names_what_it_offers(url):
  found = httpx.get(url.removesuffix("/v1") + "/openapi.json").json()
  assert "/v1/chat/completions" in found["paths"]


@pytest.mark.parametrize(
  ("flags", "told"),
  [
    ((), "--model names no model"),
    (("--model=/no/such/folder",), "There is no model at /no/such/folder"),
    (("--model=story", "--max_new=100000"), "positions"),
    (("--model=story", "--host=0.0.0.0"), "needs a token"),
  ],
)
def test_wrong_input_is_one_sentence(flags, told):
  with start(*flags) as server:
    out, error = server.communicate(timeout=120)
  assert server.returncode == 2
  assert told in error.splitlines()[-1] and not out
  assert "Traceback" not in error
