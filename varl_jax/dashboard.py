"""A run's report while it trains: parses and wires.

    python -m varl_jax.dashboard runs/story

shows the run in that folder at http://127.0.0.1:8780 and follows it; it reads
the folder, writes nothing and may be started and stopped at any time. It
listens to this machine alone; any other --host needs a token in the environment
variable VARL_JAX_TOKEN (--token_env), which the printed address carries. There
is no TLS in it: put a proxy or an SSH tunnel before it.

Exit codes: 0 stopped, 2 wrong input.
"""

import argparse
import os
import pathlib
import sys
import urllib.parse
from collections.abc import Sequence

from varl_jax.command_line import refuse
from varl_jax.report_data import ReportError
from varl_jax.run_reader import RunReader
from varl_jax.service import http_process
from varl_jax.service.http_process import ListenError

# A token is guessed at this length in no time; see `check`.
LEAST_TOKEN = 16


def main(arguments: Sequence[str] | None = None) -> int:
  """Serves until a signal; returns the exit code."""
  parser = argparse.ArgumentParser(
    prog="python -m varl_jax.dashboard",
    description="Shows a run while it trains; reads its folder only.",
  )
  parser.add_argument("workdir", type=pathlib.Path, help="the run's folder")
  parser.add_argument("--host", default="127.0.0.1", help="to listen at")
  parser.add_argument("--port", type=int, default=8780, help="0 for a free one")
  parser.add_argument(
    "--token_env", default="VARL_JAX_TOKEN", help="variable with the token"
  )
  chosen = parser.parse_args(arguments)
  token = os.environ.get(chosen.token_env, "")
  try:
    check(chosen.host, token, token_env=chosen.token_env)
    return serve(chosen.workdir, chosen.host, chosen.port, token)
  except (ReportError, ListenError) as error:
    return refuse(str(error))
  except ModuleNotFoundError as error:
    return refuse(f"{error.name} is not installed; pip install -e '.[server]'.")


def check(host: str, token: str, *, token_env: str) -> None:
  """Refuses what would show the run to strangers.

  Raises:
    ListenError: another machine can reach it and there is no token, or one
      that can be guessed or sent in no cookie.
  """
  if not token and not http_process.is_loopback(host):
    raise ListenError(
      f"--host={host} can be reached from other machines, which needs a token:"
      f" set {token_env or 'a variable named by --token_env'}."
    )
  plain = token.isascii() and token.replace("-", "").replace("_", "").isalnum()
  if token and not (plain and len(token) >= LEAST_TOKEN):
    raise ListenError(
      f"The token in {token_env} must be {LEAST_TOKEN} or more letters, digits,"
      " - and _."
    )


def serve(workdir: pathlib.Path, host: str, port: int, token: str) -> int:
  """Serves the run's pages until a signal; returns the exit code.

  Raises:
    ReportError: there is no such folder.
    ListenError: the address is taken.
    ModuleNotFoundError: the extra `server` is not installed.
  """
  from varl_jax.dashboard_app import make_app

  reader = RunReader(workdir)
  with http_process.listen(host, port) as listening:
    url = http_process.address(listening)
    query = f"/?{urllib.parse.urlencode({'token': token})}" if token else ""
    server = http_process.make_server(
      make_app(reader, token=token),
      ready=lambda: print(f"Showing {workdir} at {url}{query}", flush=True),
    )
    http_process.serve_until_signal(server, listening)
  return 0


if __name__ == "__main__":
  sys.exit(main())
