import json

import pytest

from varl_jax.llm import failures
from varl_jax.llm.transport import RawReply


def refused(status, *, headers=None, text=None, **error):
  body = json.dumps({"error": error}) if text is None else text
  raw = RawReply(status=status, headers=headers or {}, body=body.encode())
  return failures.refused(raw, now=0.0)


@pytest.mark.parametrize(
  ("status", "error", "kind"),
  [
    (429, {"code": "insufficient_quota"}, "quota"),
    (429, {"type": "insufficient_quota"}, "quota"),
    (402, {"message": "Insufficient credits"}, "quota"),
    (400, {"message": "Unknown model."}, "rejected"),
    (401, {"message": "Bad key."}, "rejected"),
    (403, {}, "rejected"),
    (404, {"code": "model_not_found"}, "rejected"),
    (308, {}, "rejected"),
    (400, {"code": "context_length_exceeded"}, "length"),
    (400, {"message": "The maximum context length is 4096."}, "length"),
    (400, {"code": "content_filter"}, "refusal"),
    (400, {"message": "violates the content management policy"}, "refusal"),
  ],
)
def test_what_no_retry_mends(status, error, kind):
  problem = refused(status, **error)
  assert (problem.kind, problem.retry) == (kind, False)
  assert f"status {status}" in problem.message


@pytest.mark.parametrize(
  ("status", "health", "pauses"),
  [
    (408, None, False),
    (429, None, True),
    (500, "ill", False),
    (502, "down", False),
    (503, "down", False),
    (529, "down", False),
  ],
)
def test_what_may_pass(status, health, pauses):
  problem = refused(status, message="Try later.")
  assert problem.kind == "unavailable" and problem.retry
  assert (problem.health, problem.pauses) == (health, pauses)


def test_a_server_that_names_a_time_pauses():
  problem = refused(503, headers={"Retry-After": "7"})
  assert problem.pauses and problem.after_s == 7.0


@pytest.mark.parametrize("text", ["", "<html>", "[]", '{"error": 3}'])
def test_bodies_of_errors_may_be_anything(text):
  assert refused(500, text=text).message == "status 500"
  assert refused(401, text=text).message == "status 401 (check the key)"


def test_an_error_as_plain_text():
  problem = refused(400, text='{"error": "model is required"}')
  assert "model is required" in problem.message


@pytest.mark.parametrize(
  ("code", "kind"),
  [(429, "unavailable"), (401, "rejected"), ("odd", "unavailable")],
)
def test_an_error_inside_a_success(code, kind):
  problem = failures.error_inside({"error": {"code": code, "message": "No."}})
  assert problem is not None and problem.kind == kind
  assert failures.error_inside({"choices": [1], "error": {}}) is None
  assert failures.error_inside({"choices": [1]}) is None
