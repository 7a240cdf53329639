"""bench/gpu/engine.py in its dry mode, and what it makes of what it measures."""

import math
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench.gpu.engine import PARTS_S, claims_of
from bench.gpu.engine_parts.decode import rates_of, step_bytes
from bench.gpu.engine_parts.equal import compared
from bench.gpu.engine_parts.part import PARTS
from bench.gpu.running.found import NO_TIME, OK, WRONG, Found, Part
from bench.gpu.running.isolated import Group, run_group
from bench.gpu.running.listener import Heard, Listener
from bench.gpu.running.models import hf_config, shape_of
from tests.bench.gpu_scripts import record_of, run_bare

SIZES = ("1b", "8b")


@pytest.mark.slow  # `make test-lease-versions` runs a part of it
def test_a_dry_run_reaches_every_part(tmp_path: Path) -> None:
    record = record_of("engine.py", "--dry", cwd=tmp_path)
    assert record["failures"] == {}
    assert record["finished"]
    assert {name: part["verdict"] for name, part in record["parts"].items()} == dict.fromkeys(
        PARTS_S, OK
    )
    assert len(record["checks"]) == 8
    assert all(check["ok"] for check in record["checks"])
    cases = {row["case"] for row in record["rows"]}
    assert cases == {
        "greedy in fp32, fused",
        "greedy in fp32, stock",
        *(f"prefill 8b, {tokens} tokens" for tokens in (64, 16)),
        *(f"decode 8b stock, batch {batch}, 32 tokens" for batch in (1, 4)),
        *(f"serve {size}, {side}" for size in SIZES for side in ("muxcluster", "transformers")),
        *(
            f"decode {size}, batch {batch}, {tokens} tokens"
            for size in SIZES
            for batch in (1, 4)
            for tokens in (32, 64)
        ),
    }
    both = [row for row in record["rows"] if row["case"].startswith("serve 8b")]
    assert both[0]["output_tokens"] == both[1]["output_tokens"] > 0
    # Nothing is said of speed.
    assert [claim["name"] for claim in record["claims"]] == ["greedy_requests_equal"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = run_bare("engine.py", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("no GPU: nothing was run")


def test_every_part_has_a_limit() -> None:
    assert PARTS.keys() == PARTS_S.keys()


class Counting:
    """Greedy choice: one more than the last token. Every choice is as clear as `gap`."""

    def __init__(self, gap: float) -> None:
        self._gap = gap

    def __call__(self, prompt: Sequence[int], count: int) -> tuple[list[int], list[float]]:
        return [prompt[-1] + 1 + i for i in range(count)], [self._gap] * count


def test_tokens_that_differ_are_counted_and_near_ties_apart() -> None:
    assert compared(Counting(1.0), [1], [2, 3, 4]) == (0, 0)
    assert compared(Counting(1.0), [1], [2, 9, 10, 11]) == (1, 0)
    assert compared(Counting(1.0), [1], [2, 9, 11, 12]) == (2, 0)
    assert compared(Counting(1e-6), [1], [2, 9, 10, 12]) == (0, 2)


@pytest.mark.parametrize("size", SIZES)
def test_a_step_reads_all_weights_but_the_embeddings_and_all_keys_and_values(size: str) -> None:
    shape = shape_of(size, tiny=False)
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**hf_config(shape)))
    held = {id(each): each.numel() for each in model.parameters()}
    embeddings = 0 if shape.tied_embeddings else model.model.embed_tokens.weight.numel()
    weights = 2 * (sum(held.values()) - embeddings)
    assert step_bytes(shape, 2, 1, 0) == pytest.approx(weights, rel=1e-3)
    attention = model.model.layers[0].self_attn
    width = attention.k_proj.out_features + attention.v_proj.out_features
    kv = 64 * 2000 * len(model.model.layers) * width * 2
    assert step_bytes(shape, 2, 64, 2000) - step_bytes(shape, 2, 64, 0) == kv


def test_the_rate_is_of_the_time_in_which_all_sequences_decode() -> None:
    listener = Listener()
    # One begins at 0 s and is fast until the other begins at 10 s; then both get 5 tokens/s.
    early = [0.1 * i for i in range(100)]
    shared = [10.0 + 0.2 * i for i in range(101)]
    listener.heard = {
        "0": Heard([1] * 201, early + shared),
        "1": Heard([1] * 141, [*shared, *(30.0 + 0.1 * i for i in range(1, 41))]),
    }
    rates, context = rates_of(listener, 1000)
    assert rates == pytest.approx([10.0] * 4)
    # In the middle of what is looked at, one has about 160 tokens and the other about 60.
    assert context == pytest.approx(1110, abs=10)


def test_claims_are_of_what_was_reached() -> None:
    rows = [
        {"case": "decode 8b, batch 64, 2048 tokens", "share_of_roofline": 0.8},
        {"case": "serve 1b, muxcluster", "tokens_per_s": 30.0},
        {"case": "serve 1b, transformers", "tokens_per_s": 10.0},
        {"case": "serve 8b, muxcluster", "tokens_per_s": 30.0},
        {"case": "decode 8b, batch 1, 128 tokens", "tokens_per_s": 150.0},
        {"case": "decode 8b stock, batch 1, 128 tokens", "tokens_per_s": 100.0},
        {"case": "prefill 8b, 160 tokens", "ms": 7.0},
    ]
    checks = ({"ok": True}, {"ok": False})
    found = Found({"all": Part("all", WRONG, checks=checks, rows=tuple(rows))})
    timed = claims_of(found, {"dry": False})
    assert {claim.name: (claim.value, claim.baseline) for claim in timed} == {
        "greedy_requests_equal": (1, 2),
        "fused_over_stock_at_1": (1.5, 1.0),
        "prefill_160_ms": (7.0, 6.5),
        "decode_of_roofline_at_64": (0.8, 0.75),
        "tokens_per_s_over_transformers_1b": (3.0, 2.0),
    }
    assert len(claims_of(found, {"dry": True})) == 1


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from bench.gpu.running.isolated import run_here

def fine(run):
    run.keep({{"case": "fine"}}, {{"series": [1.0]}})

def fails(run):
    raise RuntimeError("out of luck")

def hangs(run):
    import time
    time.sleep(600)

sys.exit(run_here({{"fine": fine, "fails": fails, "hangs": hangs}}))
"""


@pytest.mark.slow
def test_a_part_that_fails_or_hangs_costs_itself_alone(tmp_path: Path) -> None:
    script = tmp_path / "parts.py"
    script.write_text(SCRIPT.format(root=str(Path(__file__).resolve().parents[2])))
    ceilings = {"copy_bytes_per_s": 1.0, "matmul_flops_per_s": 1.0}
    shared = {"device": "cpu", "seed": 0, "repeats": 1, "ceilings": ceilings, "tiny": True}
    done = run_group(script, Group(("fails", "fine"), 120.0), shared, math.inf)
    assert done.parts["fine"].verdict == OK
    assert done.parts["fine"].samples == {"series": [1.0]}
    assert done.failures == {"fails": "RuntimeError: out of luck"}
    done = run_group(script, Group(("fine", "hangs"), 25.0), shared, math.inf)
    assert [row["case"] for row in done.rows] == ["fine"]
    assert done.failures.keys() == {"hangs"}
    assert done.failures["hangs"].startswith("ended after 25 s")
    late = run_group(script, Group(("fails", "fine"), 120.0), shared, monotonic())
    assert late.failures == {"fails": "no time left", "fine": "no time left"}
    assert {part.verdict for part in late.parts.values()} == {NO_TIME}
    least = Group(("fine",), 120.0, least_s=60.0)
    assert run_group(script, least, shared, monotonic() + 30).parts["fine"].verdict == NO_TIME
