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
    (
      400,
      {"message": "the request exceeds the available context size"},
      "length",
    ),
    (
      400,
      {"message": "Longer than the maximum model length of 4096."},
      "length",
    ),
    (400, {"message": "prompt is too long: 9 tokens > 8 maximum"}, "length"),
    (413, {}, "length"),
    (400, {"code": "invalid_prompt"}, "refusal"),
    (400, {"code": "data_inspection_failed"}, "refusal"),
    (400, {"message": "Potentially violating our usage policy."}, "refusal"),
    (403, {"message": "Your input was flagged by moderation."}, "refusal"),
    (401, {"message": "Your key was flagged."}, "rejected"),
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


@pytest.mark.parametrize(
  "text",
  [
    '{"object": "error", "message": "The reason.", "code": 400}',
    '{"error": null, "message": "The reason."}',
    '{"error": "Bad Request", "message": "The reason."}',
    '{"error": "The reason."}',
    '{"detail": "The reason."}',
    '{"detail": [{"loc": ["body", "n"], "msg": "The reason."}]}',
    '[{"error": {"message": "The reason."}}]',
    '"The reason."',
    "The reason.",
  ],
)
def test_the_reason_is_read_wherever_it_stands(text):
  problem = refused(400, text=text)
  assert problem.kind == "rejected" and "The reason." in problem.message


def test_what_a_body_names_at_its_top_counts_too():
  text = '{"object": "error", "message": "No.", "type": "insufficient_quota"}'
  assert refused(429, text=text).kind == "quota"
  text = '{"object": "error", "message": "No.", "param": "response_format"}'
  assert refused(400, text=text).param == "response_format"
  text = '{"message": "Longer than the maximum model length."}'
  assert refused(400, text=text).kind == "length"


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
  whole = {"object": "error", "code": code, "message": "No."}
  assert failures.error_inside(whole) == problem
  assert failures.error_inside({"choices": [1], "error": {}}) is None
  assert failures.error_inside({"choices": [1]}) is None
