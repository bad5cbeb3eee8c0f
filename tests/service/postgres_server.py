"""A PostgreSQL server of the tests' own: a real one, on a local socket.

The binaries are those of the `pgserver` package. PostgreSQL refuses to run as
root, so that root's tests start it as `nobody`, from a copy where that user
cannot read the package's folder.
"""

import importlib.util
import os
import pathlib
import pwd
import secrets
import shutil
import subprocess
import tempfile

import psycopg

USER = "postgres"


class PostgresServer:
  """Starts, stops and restarts one server; `remove` ends it."""

  def __init__(self):
    self.password = "p-" + secrets.token_hex(12)
    # Short: a socket's path has about a hundred characters.
    self.folder = pathlib.Path(tempfile.mkdtemp(prefix="varl_pg_", dir="/tmp"))
    self._data = self.folder / "data"
    self._account = _account()
    self._binaries = _binaries(self.folder, self._account)
    if self._account:
      os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
    secret = self.folder / "password"
    secret.write_text(self.password)
    secret.chmod(0o644)
    self._run(
      "initdb",
      f"--pgdata={self._data}",
      f"--username={USER}",
      f"--pwfile={secret}",
      "--auth=scram-sha-256",
      "--encoding=UTF8",
      "--no-sync",
    )
    secret.unlink()
    self.start()

  def address(self, *, password: str | None = None, database=USER) -> str:
    """A psycopg address."""
    word = self.password if password is None else password
    return f"postgresql://{USER}:{word}@/{database}?host={self.folder}"

  def connect(self) -> psycopg.Connection:
    """A session of the administrator."""
    return psycopg.connect(self.address(), autocommit=True)

  def start(self) -> None:
    """Starts it and waits until it answers."""
    self._run(
      "pg_ctl",
      "start",
      "-w",
      "-t60",
      f"-D{self._data}",
      f"-l{self.folder / 'log'}",
      f"-o-h '' -k {self.folder} -c shared_buffers=16MB -c max_connections=20",
    )

  def stop(self, *, mode: str = "fast") -> None:
    """Stops it; `immediate` is as good as a crash."""
    self._run("pg_ctl", "stop", "-w", f"-D{self._data}", f"-m{mode}")

  def remove(self) -> None:
    """Stops it for good and deletes its files."""
    self.stop(mode="immediate")
    shutil.rmtree(self.folder)

  def _run(self, program: str, *arguments: str) -> None:
    # A file and no pipe, which the server would hold open.
    with open(self.folder / "output", "w", encoding="utf-8") as output:
      done = subprocess.run(
        [str(self._binaries / program), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=self.folder,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        timeout=120,
        **_as(self._account),
      )
    files = [self.folder / "output", self.folder / "log"]
    said = "".join(path.read_text() for path in files if path.exists())
    assert done.returncode == 0, f"{program} failed: {said}"


def _account() -> pwd.struct_passwd | None:
  return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _as(account: pwd.struct_passwd | None) -> dict:
  if account is None:
    return {}
  return {
    "user": account.pw_uid,
    "group": account.pw_gid,
    "extra_groups": [],
  }


def _binaries(
  folder: pathlib.Path, account: pwd.struct_passwd | None
) -> pathlib.Path:
  """The package's binaries, where the account can run them."""
  spec = importlib.util.find_spec("pgserver")
  assert spec is not None and spec.origin is not None
  install = pathlib.Path(spec.origin).parent / "pginstall"
  if account is not None:
    reached = subprocess.run(
      ["test", "-x", str(install / "bin" / "postgres")],
      **_as(account),
      check=False,
    )
    if reached.returncode:
      # The libraries of the wheel lie beside the package, found from there.
      site = install.parents[1]
      for part in ("pgserver/pginstall", "pgserver.libs"):
        shutil.copytree(site / part, folder / part, symlinks=True)
      install = folder / "pgserver" / "pginstall"
  return install / "bin"
