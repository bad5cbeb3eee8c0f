"""What is installed: all of the package, its data, and nothing heavy."""

import importlib.metadata
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[1]
DATA = (".txt", ".json", ".jinja", ".css", ".js", ".safetensors")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
  """A wheel of a copy of the tree, built without a network."""
  copy = tmp_path_factory.mktemp("tree") / "tree"
  copy.mkdir()
  for name in ("setup.py", "pyproject.toml", "README.md"):
    shutil.copy(ROOT / name, copy / name)
  for name in ("varl_jax", "kernels"):
    shutil.copytree(
      ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__")
    )
  subprocess.run(
    [sys.executable, "setup.py", "-q", "bdist_wheel"],
    cwd=copy,
    check=True,
    capture_output=True,
    timeout=120,
  )
  [path] = (copy / "dist").glob("*.whl")
  return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel):
  [name] = [n for n in wheel.namelist() if n.endswith("/METADATA")]
  return wheel.read(name).decode()


def test_the_wheel_holds_every_module_and_data_file(wheel):
  held = set(wheel.namelist())
  wanted = {
    path.relative_to(base).as_posix()
    for base, folder in (
      (ROOT, ROOT / "varl_jax"),
      (ROOT / "kernels", ROOT / "kernels" / "varl_kernels"),
    )
    for path in folder.rglob("*")
    if path.suffix in (".py", *DATA)
  }
  assert wanted - held == set()
  assert "varl_kernels/__init__.py" in held
  assert "varl_jax/report.html.jinja" in held
  assert any(n.startswith("varl_jax/prompts/shared/") for n in held)


def test_the_wheel_holds_nothing_else(wheel):
  tops = {name.split("/")[0] for name in wheel.namelist()}
  assert {t for t in tops if not t.endswith(".dist-info")} == {
    "varl_jax",
    "varl_kernels",
  }


def test_extras_are_those_of_the_design(metadata):
  extras = set(re.findall(r"^Provides-Extra: (\S+)$", metadata, re.M))
  assert extras == {
    "constrained",
    "cuda",
    "dev",
    "embed",
    "figures",
    "inspect",
    "milvus",
    "openai",
    "parity",
    "postgres",
    "retrieval",
    "server",
    "smollm2",
    "tensorboard",
    "test",
    "tpu",
    "xm",
  }
  assert "Requires-Python: >=3.11" in metadata
  for line in re.findall(r"^Requires-Dist: .*torch.*$", metadata, re.M):
    assert 'extra == "parity"' in line


def test_pins_satisfy_what_is_asked_for(metadata):
  """Every base, test and dev requirement is pinned within its bounds."""
  requirements = pytest.importorskip("packaging.requirements")
  pins = {}
  for line in (ROOT / "constraints.txt").read_text().splitlines():
    if line and not line.startswith("#"):
      pin = requirements.Requirement(line)
      if pin.marker is None or pin.marker.evaluate():
        [version] = [s.version for s in pin.specifier]
        assert _plain(pin.name) not in pins, line
        pins[_plain(pin.name)] = version
  for line in re.findall(r"^Requires-Dist: (.*)$", metadata, re.M):
    wanted = requirements.Requirement(line)
    extra = re.search(r'extra == "(\w+)"', line)
    if extra is None or extra[1] in ("test", "dev", "smollm2"):
      assert _plain(wanted.name) in pins, wanted.name
    if _plain(wanted.name) in pins:
      assert wanted.specifier.contains(pins[_plain(wanted.name)]), line


def _plain(name):
  return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("name", ["varl_jax", "varl_kernels"])
def test_a_bare_import_loads_nothing_outside_the_standard_library(name):
  code = (
    "import sys; before = set(sys.modules)\n"
    f"import {name}\n"
    "new = {m.split('.')[0] for m in set(sys.modules) - before}\n"
    f"new -= {{*sys.stdlib_module_names, {name!r}}}\n"
    "sys.exit(', '.join(new) or None)\n"
  )
  done = subprocess.run(
    [sys.executable, "-c", code],
    cwd=ROOT / "kernels" if name == "varl_kernels" else ROOT,
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert done.returncode == 0, done.stderr


def test_modules_that_need_no_weights_import_without_extras():
  """Importing every host module and the report loads no optional package."""
  code = (
    "import sys\n"
    "import varl_jax.report, varl_jax.metrics, varl_jax.config\n"
    "optional = ['openai', 'torch', 'tensorflow', 'gguf', 'jax']\n"
    "sys.exit(', '.join(n for n in optional if n in sys.modules) or None)\n"
  )
  done = subprocess.run(
    [sys.executable, "-c", code],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
  "module",
  [
    "varl_jax.main",
    "varl_jax.report",
    "varl_jax.evaluate",
    "varl_jax.dashboard",
  ],
)
def test_commands_explain_themselves(module):
  done = subprocess.run(
    [sys.executable, "-m", module, "--help"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert module.rpartition(".")[2] in done.stdout + done.stderr
  assert "Traceback" not in done.stderr


def test_the_installed_package_is_this_one():
  try:
    found = importlib.metadata.version("varl_jax")
  except importlib.metadata.PackageNotFoundError:
    pytest.skip("varl_jax runs from its source tree")
  assert f'version="{found}"' in (ROOT / "setup.py").read_text()
