"""Parts of the bench of planned jobs on the CPU engine: their files, their answers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.offline.engine import different
from bench.offline.engine_jobs import Answered, Machine, answer, few_shot_job, shaped_job
from muxcluster.demo.models import build_model
from muxcluster.workload.batchmix import Kind

BYTES_OF_TOKEN = 3 * 2 * 2 * 64 * 4


def _bodies(path: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["custom_id"] for line in lines] == [str(number) for number in range(len(lines))]
    return [line["body"] for line in lines]


def test_a_shaped_job_shares_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "job.jsonl"
    optimum = shaped_job(path, Kind(1.0, 4, 64, 20, 5), 12, 512, seed=0)
    bodies = _bodies(path)
    prompts = [tuple(body["prompt"]) for body in bodies]
    assert all(min(prompt) >= 10 and max(prompt) < 512 for prompt in prompts)
    seen: set[tuple[int, ...]] = set()
    saved = 0
    for prompt in prompts:
        # blocks of 16, of which the last token's is computed
        blocks = [prompt[:end] for end in range(16, len(prompt), 16)]
        saved += 16 * sum(block in seen for block in blocks)
        seen.update(blocks)
    assert optimum == saved / sum(map(len, prompts)) > 0.3


def test_few_shot_prompts_begin_with_one_of_the_sets(data_dir: Path, tmp_path: Path) -> None:
    rows = data_dir / "gsm8k/train.first3000.jsonl"
    path = tmp_path / "job.jsonl"
    few_shot_job(path, rows, 20, (3, 2), 8, seed=0)
    read = [json.loads(line) for line in rows.read_text().splitlines()[:26]]
    begins = [f"Question: {read[2 * i]['question']}\nAnswer: " for i in range(3)]
    bodies = _bodies(path)
    prompts = [str(body["prompt"]) for body in bodies]
    assert {begin for prompt in prompts for begin in begins if prompt.startswith(begin)} == set(
        begins
    )
    for prompt, row in zip(prompts, read[6:], strict=True):
        assert prompt.endswith(f"Question: {row['question']}\nAnswer:")
        assert prompt.count("Question: ") == 3
    assert {body["max_tokens"] for body in bodies} == {8}
    with pytest.raises(ValueError, match="too few"):
        few_shot_job(path, rows, 3000, (3, 2), 8, seed=0)


def test_different_answers_are_counted_by_request() -> None:
    one = Answered("fcfs", {"0": "a", "1": "b", "2": "c"}, 3, 0, 3, 1.0)
    other = replace(one, order="dfs", texts={"0": "a", "1": "x", "2": "c"})
    third = replace(one, order="random", texts={"0": "a", "1": "y", "2": "z"})
    assert different([one, one]) == 0
    assert different([one, other]) == 1
    assert different([one, other, third]) == 2


def test_a_job_is_answered_alike_in_two_orders(tmp_path: Path) -> None:
    machine = Machine(
        build_model(tmp_path / "model", "llama"), 300, BYTES_OF_TOKEN, 256, num_tokens=64
    )
    path = tmp_path / "job.jsonl"
    optimum = shaped_job(path, Kind(1.0, 3, 40, 10, 4), 9, 512, seed=0)
    runs = [answer(machine, path, order) for order in ("fcfs", "batchllm")]
    assert different(runs) == 0
    assert [run.order for run in runs] == ["fcfs", "batchllm"]
    assert all(len(run.texts) == 9 and run.running_s > 0 for run in runs)
    planned = runs[1].row()
    assert planned["prompt_tokens"] == sum(len(body["prompt"]) for body in _bodies(path))
    assert 0 < planned["saving"] <= round(optimum, 4)
