"""`muxcluster simulate --batch`: a job from a file beside interactive requests."""

import json
from pathlib import Path

import numpy as np
import pytest

from bench.traces.batchmix import Kind, mixed_job
from tests.cli.calls import call, refusal

SHORT = ("--duration", "8", "--processes", "1", "--systems", "muxserve")


@pytest.fixture
def job(tmp_path: Path) -> str:
    """60 requests in families of six that arrive mixed."""
    made = mixed_job([Kind(1.0, 6, 400, 60, 20)], 60, np.random.default_rng(1))
    path = tmp_path / "job.jsonl"
    with path.open("w") as file:
        for i, output in enumerate(made.output_tokens.tolist()):
            ids = made.ids[made.offsets[i] : made.offsets[i + 1]].tolist()
            file.write(json.dumps({"prompt": ids, "output_tokens": output}) + "\n")
    return str(path)


def _case(capsys, *arguments: str) -> dict:
    code, out, err = call(capsys, "simulate", *arguments, *SHORT, "--json")
    assert (code, err) == (0, "")
    (case,) = json.loads(out)["cases"]
    return case


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "lengths"), [("auto", "sampled"), ("fcfs", "known"), ("batchllm", "sampled")]
)
def test_the_whole_job_runs_beside_the_same_requests(
    capsys, small, job, order: str, lengths: str
) -> None:
    alone = _case(capsys, small())
    chosen = ("--batch", job, "--order", order, "--lengths", lengths, "--batch-model", "chat")
    both = _case(capsys, small(), *chosen)
    batch = both["classes"]["batch"]
    assert (batch["num_requests"], batch["num_waves"]) == (60, 1)
    assert batch["latency"]["count"] == 60
    interactive = both["classes"]["interactive"]
    assert interactive["num_requests"] == alone["total"]["num_requests"]
    assert both["models"]["code"]["num_requests"] == alone["models"]["code"]["num_requests"]
    assert interactive["finished_share"] == 1.0


def test_the_table_tells_how_long_the_job_took(capsys, small, job) -> None:
    chosen = ("--batch", job, "--order", "dfs", "--batch-model", "chat")
    code, out, err = call(capsys, "simulate", small(), *chosen, *SHORT)
    assert (code, err) == (0, "")
    assert "muxserve: 60 batch requests ran in " in out


def test_bad_input_is_refused_in_one_line(capsys, small, job) -> None:
    base = ("simulate", small(), *SHORT)
    assert "need --batch" in refusal(capsys, *base, "--order", "dfs")
    assert "need --batch" in refusal(capsys, *base, "--lengths", "known")
    assert "--lengths told: expected one of sampled, known" in refusal(
        capsys, *base, "--batch", job, "--lengths", "told"
    )
    assert "--order lifo: expected" in refusal(capsys, *base, "--batch", job, "--order", "lifo")
    assert "--batch-model: needed: one of" in refusal(
        capsys, *base, "--batch", job, "--order", "dfs"
    )
    Path(job).write_text('{"prompt": []}\n')
    chosen = ("--batch", job, "--order", "dfs", "--batch-model", "chat")
    assert "job.jsonl:1: prompt: expected" in refusal(capsys, *base, *chosen)


def test_units_that_serve_the_model_divide_the_job(capsys, tmp_path: Path, job) -> None:
    path = tmp_path / "units.yaml"
    path.write_text(
        "models:\n"
        "  - {name: chat, shape: llama-3.1-8b, rate: 60.0, max_model_len: 2048, max_seqs: 128}\n"
        "cluster: {nodes: [{name: a, gpus: 3, gpu: A100-80GB}]}\n"
        "policy: {kv_gb: 2}\n"
    )
    case = _case(capsys, str(path), "--batch", job, "--order", "batchllm")
    assert len(case["units"]) == 3
    batch = case["classes"]["batch"]
    assert (batch["num_requests"], batch["latency"]["count"]) == (60, 60)
