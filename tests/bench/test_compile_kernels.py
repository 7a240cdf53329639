"""The compile check sees spills, shared memory and tensor cores, and fails on faults."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton's wheels are for Linux")

from bench.kernels.compiled import (
    SHARED_LIMITS,
    CompileFailed,
    compile_specimen,
    modules,
    specimens,
)
from tests.bench.faulty_kernels import NONSENSE, product_of, sums_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


def check(root: Path, *arguments: str) -> tuple[int, dict, str]:
    """Run the script of the tree at `root`: exit code, record, table."""
    done = subprocess.run(
        (sys.executable, root / "bench" / "compile_kernels.py", "--json", "-", *arguments),
        capture_output=True,
        text=True,
        # The script must compile even where the caller interprets.
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def test_every_kernel_has_a_specimen_for_every_gpu():
    every = [each for module in modules() for each in specimens(module)]
    named = {(each.name, capability): each for each in every for capability in each.capabilities}
    # A name may come twice where two shapes get the same tiles, but it means one thing.
    assert all(named[each.name, number] == each for each in every for number in each.capabilities)
    assert {name.split()[0] for name, _ in named} >= {"add_rms_norm", "rotary", "silu_mul"}
    for module in modules():
        found = {each for specimen in specimens(module) for each in specimen.capabilities}
        assert found == (set(SHARED_LIMITS) if specimens(module) else set())


@pytest.mark.slow  # `make check` runs the script on all kernels
def test_the_script_compiles_a_kernel_and_says_so():
    code, record, table = check(ROOT, "--modules", "silu_mul", "--quick")
    asked = len(specimens("silu_mul"))
    assert code == 0
    claims = {each["name"]: each for each in record["claims"]}
    assert claims["kernels_compiled"]["value"] == claims["kernels_compiled"]["baseline"] == asked
    assert claims["kernels_with_stack"]["value"] == 0
    assert [row["kernel"] for row in record["kernels"]] == [e.name for e in specimens("silu_mul")]
    assert all(16 <= row["registers"] <= 255 for row in record["kernels"])
    assert "silu_mul bf16" in table


@pytest.mark.slow
def test_the_script_fails_on_a_spill_on_nonsense_and_on_what_is_worse_than_it_was(tmp_path):
    for package in ("muxcluster", "bench"):
        ignored = shutil.ignore_patterns("results", "__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    source = ROOT / "tests" / "bench" / "faulty_kernels.py"
    shutil.copy(source, tmp_path / "muxcluster" / "kernels" / "triton_ops" / "faulty.py")
    bounds = tmp_path / "bench" / "kernels" / "bounds.json"
    found = json.loads(bounds.read_text())
    found["bounds"]["silu_mul bf16 sm_90"]["registers"] = 10
    found["bounds"]["silu_mul fp16 sm_90"]["registers"] = 100
    bounds.write_text(json.dumps(found))
    code, record, table = check(tmp_path, "--modules", "faulty", "silu_mul", "--quick")
    assert code == 1
    spill, nonsense, unbound, worse = record["faults"]
    assert "row_sums" in spill
    assert "stack" in spill
    assert "nowhere is not defined" in nonsense
    assert unbound == "row_sums 8192 sm_90: no bounds: add them with --update-bounds"
    assert re.fullmatch(r"silu_mul bf16 sm_90: \d+ registers, the bound is 10", worse)
    claims = {each["name"]: each["value"] for each in record["claims"]}
    assert claims["kernels_compiled"] == 1 + len(specimens("silu_mul"))
    assert claims["kernels_with_stack"] == 1
    assert claims["launches_per_layer"] > 0
    assert claims["capture_streams_per_place"] == 1
    assert "does not compile" in table
    assert "silu_mul fp16 sm_90: better than its bounds" in table


@pytest.mark.slow
def test_registers_without_and_with_spills():
    small, large = (compile_specimen(sums_of(width), 90) for width in (512, 8192))
    assert small.faults() == ()
    assert small.registers < 64
    assert large.registers == 255
    assert large.stack_bytes > 0
    assert large.spills > 0
    assert "stack" in large.faults()[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "matrix"), [(80, "mma.sync"), (90, "wgmma.mma_async"), (100, "tcgen05.mma")]
)
def test_tensor_cores_are_seen(capability, matrix):
    found = compile_specimen(product_of(3), capability)
    assert found.matrix == matrix
    assert found.copies == "cp.async"


@pytest.mark.slow
def test_divisible_changes_the_binary():
    """bf16 that may start at an odd address cannot be copied four bytes at a time."""
    assert compile_specimen(product_of(3, divisible=False), 80).copies == "-"


@pytest.mark.slow
def test_shared_memory_over_the_limit():
    within, over = (compile_specimen(product_of(stages), 90) for stages in (3, 5))
    assert not any("shared" in fault for fault in within.faults())
    assert over.shared_bytes > 232_448
    assert any("shared memory, over 232448" in fault for fault in over.faults())


def test_refused():
    with pytest.raises(CompileFailed, match="nowhere is not defined"):
        compile_specimen(NONSENSE, 90)
    with pytest.raises(CompileFailed, match="the specimen has"):
        compile_specimen(replace(sums_of(512), signature={"out": "*fp32"}), 90)
    with pytest.raises(CompileFailed, match="no argument"):
        compile_specimen(replace(sums_of(512), divisible=frozenset({"row"})), 90)
