"""`muxcluster simulate --hybrid`: both classes apart, for one's own models and targets."""

import json

import pytest

from muxcluster.scheduling.packing import PACKINGS
from tests.cli.calls import call, refusal

SHORT = ("--duration", "10", "--processes", "1")
BASELINES = "muxserve:packing=priority,muxserve:packing=fcfs"


def simulated(capsys, *arguments: str) -> list[dict]:
    """The cases of a call that must succeed quietly."""
    code, out, err = call(capsys, "simulate", *arguments, *SHORT, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)["cases"]


def test_the_table_has_a_line_a_packing_with_both_classes(capsys, small) -> None:
    more = ("--batch-requests", "20", "--systems", BASELINES)
    code, out, err = call(capsys, "simulate", small(), *SHORT, "--hybrid", *more)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "interactive requests in 10 s" in lines[0]
    assert "batch tokens/s" in lines[1]
    assert [line.split()[0] for line in lines[2:4]] == BASELINES.split(",")
    assert all(len(line.split()) > 12 for line in lines[2:4])


@pytest.mark.slow
def test_every_packing_is_compared_where_no_system_is_named(capsys, small) -> None:
    cases = simulated(capsys, small(rate=1.0), "--hybrid", "--batch-requests", "8")
    assert [case["system"] for case in cases] == [f"muxserve:packing={name}" for name in PACKINGS]


@pytest.mark.slow
def test_interactive_requests_are_the_same_with_and_without_batch_load(capsys, small) -> None:
    systems = ("--systems", BASELINES)
    plain = simulated(capsys, small(), *systems)
    hybrid = simulated(capsys, small(), *systems, "--hybrid")
    assert [case["classes"] for case in plain] == [None, None]
    for before, after in zip(plain, hybrid, strict=True):
        mine, batch = after["classes"]["interactive"], after["classes"]["batch"]
        assert mine["num_requests"] == before["total"]["num_requests"]
        assert mine["finished_share"] == 1.0
        assert batch["tokens_per_s"] > 1000
        assert mine["num_requests"] + batch["num_requests"] == after["total"]["num_requests"]
    priority, fcfs = (case["classes"]["interactive"] for case in hybrid)
    assert priority["normalised"]["mean"] < fcfs["normalised"]["mean"]


def test_batch_requests_are_as_many_and_as_long_as_asked_for(capsys, small) -> None:
    more = ("--batch-prompt-tokens", "300", "--batch-output-tokens", "20", "--batch-requests", "30")
    (case,) = simulated(
        capsys, small(), "--hybrid", *more, "--length-sigma", "0", "--systems", "temporal"
    )
    batch = case["classes"]["batch"]
    assert batch["num_requests"] % 30 == 0
    assert batch["num_requests"] >= 90  # three models on at least a unit
    assert batch["output_tokens_per_s"] / batch["tokens_per_s"] < 20 / 300


def test_its_numbers_are_refused_alone_and_where_no_model_takes_them(capsys, small) -> None:
    for option in ("--batch-prompt-tokens", "--batch-output-tokens", "--batch-requests"):
        assert f"{option} needs --hybrid" in refusal(capsys, "simulate", small(), option, "9")
    too_long = ("--hybrid", "--batch-prompt-tokens", "2048")
    assert "'chat' takes at most 2047 tokens" in refusal(capsys, "simulate", small(), *too_long)
