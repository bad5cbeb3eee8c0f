"""Plans: what is read of a compiler, tried, written; no TPU compiler needed."""

import json

import jax
import pytest

from experiments import plan, plan_compile, plan_programs, plan_traffic
from varl_jax.config import MeshConfig
from varl_jax.models import sharding
from varl_jax.models.qwen3_5_shape import Qwen35Config, qwen3_5_9b

V5E = (
  "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for"
  " HLO temporaries (34.62G) exceeds available HBM (15.75G)."
)
OLDER = (
  "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in"
  " memory space hbm. Used 17.50G of 15.48G hbm. Exceeded by 2.02G."
)
LAYOUT = """BufferAssignment:
allocation 0: size 512, thread-local:
 value: <2 reduce_sum.908 @0> (size=512,offset=0): f32[]{:T(128)}
allocation 1: size 1000, parameter 0, shape |f32[10,25]| at ShapeIndex {}:
 value: <10712 param.48 @0> (size=1000,offset=0): f32[10,25]{1,0:T(8,128)}
allocation 2: size 70, maybe-live-out:
 value: <11 tuple.1 @0> (size=70,offset=0): (f32[10,25])
allocation 3: size 300, preallocated-temp:
 value: <12 fusion.1{0} @0> (size=100,offset=0): bf16[5,10]{1,0:T(8,128)}
 value: <13 copy.3 @0> (size=200,offset=100): f32[5,10]{1,0:T(8,128)}
 value: <14 copy.4 @0> (size=200,offset=100): f32[5,10]{1,0:T(8,128)}
allocation 4: size 4096, color 1, preallocated-temp:
 value: <15 copy.5 @1> (size=4096,offset=0): f32[1,1024]{1,0:T(1,128)S(1)}
"""
TINY = Qwen35Config(
  vocab_size=64,
  hidden_size=16,
  intermediate_size=32,
  num_layers=4,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  rotary_dim=4,
  delta_k_heads=1,
  delta_v_heads=2,
  delta_k_dim=8,
  delta_v_dim=8,
  max_position=256,
)


@pytest.mark.parametrize(
  ("message", "gib"), [(V5E, 34.62), (OLDER, 17.5), ("INTERNAL: fell over", 0)]
)
def test_a_lack_of_memory_is_told_from_other_failures(message, gib):
  assert plan_compile.over_limit(message) == int(gib * 2**30)


def test_memory_is_read_by_use_without_what_lies_on_the_chip():
  memory, buffers = plan_compile.read_layout(LAYOUT)
  assert memory == {
    "arguments": 1000,
    "temporaries": 300,
    "fresh_outputs": 70,
  }
  assert buffers == [
    {"array": "f32[5,10]", "bytes": 200, "by": "copy.3"},
    {"array": "bf16[5,10]", "bytes": 100, "by": "fusion.1{0}"},
  ]


@pytest.mark.parametrize(
  ("array", "wrong"),
  [
    ("f32[1,8192,248320]", True),
    ("f32[2,8192,15520]", True),
    ("f32[8192,62080]", True),
    # A chunk, a head, a shard of a head's gradient, another type.
    ("f32[4,67,62080]", False),
    ("f32[62080,4,1024]", False),
    ("f32[1,15520,4096]", False),
    ("bf16[1,8192,248320]", False),
    ("f32[1,14336,12288]", False),
  ],
)
def test_logits_of_many_tokens_are_seen(array, wrong):
  buffer = {"array": array, "bytes": 0, "by": "x"}
  found = plan_compile.logits_among(
    [buffer], vocab=248320, width=4096, parts=16
  )
  assert found == ([array] if wrong else [])


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_the_step_that_is_planned_trains_what_the_rank_says(monkeypatch, rank):
  monkeypatch.setitem(plan_programs.CONFIGS, "tiny", lambda: TINY)
  setting = plan_programs.Setting(
    model="tiny",
    topology="",
    mesh=(1, 1, 1),
    prompt=8,
    response=8,
    rows=4,
    micro=2,
    groups=1,
    samples=2,
    lora_rank=rank,
  )
  mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
  lowered = plan_programs.lower_step(setting, mesh)
  state, kept, pieces, _ = lowered.in_avals[0]
  assert pieces["tokens"].shape == (2, 2, 16)
  assert list(state.params) == (["lora"] if rank else ["params"])
  trained = jax.tree.leaves(state.params)
  assert all(leaf.dtype == "float32" for leaf in trained)
  # Two moments and a count beside what is trained.
  assert len(jax.tree.leaves(state.opt_state)) == 2 * len(trained) + 2
  if rank:
    trunk = kept["params"]
    assert trunk["lm_head"].dtype == "bfloat16"
    assert trunk["layers"]["delta"]["q"]["kernel"].dtype == "bfloat16"


def test_traffic_of_decoding_is_weights_keys_and_states():
  cut = plan_traffic.Cut(data=1, fsdp=1, tensor=4)
  size = dict(groups=8, samples=8, prompt=6144, response=8192, cut=cut)
  moved = plan_traffic.decode_bytes(qwen3_5_9b(), **size)
  assert moved["matrices"] == pytest.approx(6.92e9 * 2 / 4, rel=0.01)
  # 32 KiB a token, the prompt's once for its eight samples.
  slots = 8 * 6144 + 64 * 8192
  assert moved["attention"] == slots * 32 * 1024 / 4
  # 50 MB a sequence, read and written.
  assert moved["delta"] == pytest.approx(2 * 50.3e6 * 64 / 4, rel=0.01)
  assert sum(moved.values()) == 2 * moved["total"]


def test_more_micro_batches_read_weights_more_often():
  cut = plan_traffic.Cut(data=1, fsdp=4, tensor=1)
  size = dict(rows=16, length=2048, width=1024, cut=cut)
  once = plan_traffic.step_bytes(qwen3_5_9b(), micro=16, **size)
  often = plan_traffic.step_bytes(qwen3_5_9b(), micro=4, **size)
  assert often["matrices"] - once["matrices"] == pytest.approx(
    3 * 4 * 2 * 6.92e9, rel=0.01
  )
  assert often["delta"] == once["delta"]


def _fake(needed):
  """A compiler by which a device needs `needed` bytes by the chips of all."""
  calls = []

  def compile_apart(setting, program, *, whole):
    calls.append((setting.topology, program, whole))
    chips = setting.mesh[0] * setting.mesh[1] * setting.mesh[2]
    memory = {"arguments": int(needed / chips), "temporaries": 10**9}
    buffers = [{"array": "bf16[14336,4096]", "bytes": 117440512, "by": "x"}]
    return plan_compile.Outcome(
      memory=memory, over=0, buffers=buffers, seconds=1.0
    )

  return calls, compile_apart


@pytest.fixture
def compiler(monkeypatch):
  calls, fake = _fake(100e9)
  monkeypatch.setattr(plan_compile, "compile_apart", fake)
  monkeypatch.setattr(plan, "prepare", lambda topology: "")
  return calls


def test_the_smallest_that_fits_is_found_from_below(compiler, capsys, tmp_path):
  path = tmp_path / "plan.json"
  flags = ["--smallest", "--topology=v5e", "--program=step", f"--json={path}"]
  assert plan.TOPOLOGIES["v5e"][:2] == ("2x2", "2x4")
  assert plan.main(flags) == 0
  # On four chips the weights and their moments alone are 27 GB.
  assert [c[0] for c in compiler] == ["v5e:2x4"]
  said = "Smallest v5e seen to fit the step of qwen3_5_9b: v5e:2x4 (8 chips)"
  assert said in capsys.readouterr().out
  rows = json.loads(path.read_text())
  assert [row["fits"] for row in rows] == [False, True]
  text = path.with_suffix(".md").read_text()
  assert said in text and "bf16[14336,4096] 0.12" in text
  # What is written is not compiled again.
  assert plan.main([*flags, "--resume"]) == 0
  assert len(compiler) == 1
  # An adapter's trunk fits, and is compiled.
  assert plan.main([*flags, "--resume", "--lora-rank=16"]) == 0
  assert [c[0] for c in compiler[1:]] == ["v5e:2x2", "v5e:2x4"]
  assert "qwen3_5_9b rank 16" in path.with_suffix(".md").read_text()


def test_a_mini_batch_is_cut_into_rows_of_the_mesh(compiler, capsys, tmp_path):
  path = tmp_path / "plan.json"
  flags = [f"--json={path}", "--topology=v5p:2x2x4"]
  assert plan.main(flags) == 0
  step, decode = json.loads(path.read_text())
  assert (step["mesh"], step["rows"], step["micro"]) == ("1x16x1", 128, 16)
  assert (decode["mesh"], decode["rows"], decode["micro"]) == ("4x1x4", 32, 0)
  assert step["intensity"] > 100 > decode["intensity"]
  # Again in their places.
  assert plan.main(flags) == 0
  assert len(json.loads(path.read_text())) == 2


def test_logits_in_a_plan_fail_it(monkeypatch, capsys):
  made = plan_compile.Outcome(
    memory={"arguments": 1},
    over=0,
    buffers=[{"array": "f32[1,8192,248320]", "bytes": 8, "by": "x"}],
    seconds=1.0,
  )
  monkeypatch.setattr(plan_compile, "compile_apart", lambda *a, **k: made)
  monkeypatch.setattr(plan, "prepare", lambda topology: "")
  assert plan.main(["--topology=v5p:2x2x1", "--program=step"]) == 1
  assert "Logits of many tokens" in capsys.readouterr().err


def test_without_the_compiler_one_sentence(monkeypatch, capsys):
  monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
  assert plan.main(["--topology=v5e:2x2"]) == 2
  assert "libtpu" in capsys.readouterr().err
  assert plan.main(["--topology=v9x:2x2"]) == 2
  assert "Unknown chip 'v9x'" in capsys.readouterr().err
