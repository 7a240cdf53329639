"""Parts of the bench of planned jobs on the CPU engine: their files, their answers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.offline.answers.jobs import (
    Answered,
    Machine,
    answer,
    few_shot_job,
    shaped_job,
    write_job,
)
from bench.offline.answers.near_ties import Oracle, differing, near_ties
from bench.offline.rows import Rows
from bench.traces.batchmix import Kind
from muxcluster.demo.models import build_model

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
    assert differing([one, one]) == []
    assert differing([one, other]) == ["1"]
    assert differing([one, other, third]) == ["1", "2"]


def test_a_job_is_answered_alike_in_two_orders(tmp_path: Path) -> None:
    machine = Machine(
        build_model(tmp_path / "model", "llama"), 300, BYTES_OF_TOKEN, 256, num_tokens=64
    )
    path = tmp_path / "job.jsonl"
    optimum = shaped_job(path, Kind(1.0, 3, 40, 10, 4), 9, 512, seed=0)
    runs = [answer(machine, path, order) for order in ("fcfs", "batchllm")]
    assert differing(runs) == []
    assert [run.order for run in runs] == ["fcfs", "batchllm"]
    assert all(len(run.texts) == 9 and run.running_s > 0 for run in runs)
    planned = runs[1].row()
    assert planned["prompt_tokens"] == sum(len(body["prompt"]) for body in _bodies(path))
    assert 0 < planned["saving"] <= round(optimum, 4)


class Told:
    """Stands for `Oracle`: the same answers, whatever is asked."""

    def __init__(self, *answers: str) -> None:
        self._answers = set(answers)

    def __call__(self, directory: Path) -> "Told":
        return self

    def answers(self, prompt: object, count: int) -> set[str]:
        assert (prompt, count) == ([11, 12], 3)
        return self._answers


@pytest.mark.parametrize(
    ("permitted", "excused"), [(("b", "x"), ["1"]), (("b", "y"), []), (("b",), [])]
)
def test_answers_are_excused_where_each_is_permitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, permitted: tuple[str, ...], excused: list[str]
) -> None:
    monkeypatch.setattr("bench.offline.answers.near_ties.Oracle", Told(*permitted))
    path = tmp_path / "job.jsonl"
    write_job(path, [[1], [11, 12]], [3, 3])
    one = Answered("fcfs", {"0": "a", "1": "b"}, 3, 0, 3, 1.0)
    other = replace(one, order="dfs", texts={"0": "a", "1": "x"})
    assert near_ties(tmp_path, path, [one, other]) == excused
    assert near_ties(tmp_path, path, [one, one]) == []


def test_an_answer_is_the_oracle_s_and_a_tie_permits_two(tmp_path: Path) -> None:
    model = build_model(tmp_path / "model", "llama")
    path = tmp_path / "job.jsonl"
    shaped_job(path, Kind(1.0, 3, 40, 10, 4), 6, 512, seed=0)
    machine = Machine(model, 300, BYTES_OF_TOKEN, 256, num_tokens=64)
    texts = answer(machine, path, "fcfs").texts
    oracle = Oracle(model)
    for number, body in enumerate(_bodies(path)):
        assert texts[str(number)] in oracle.answers(body["prompt"], body["max_tokens"])
    prompt, count = _bodies(path)[0]["prompt"], _bodies(path)[0]["max_tokens"]
    (alone,) = oracle.answers(prompt, count)
    weight = oracle._model.lm_head.weight
    logits = oracle._model(torch.tensor([prompt])).logits[0, -1]
    best, other = logits.topk(2).indices.tolist()
    with torch.no_grad():
        weight[other] = weight[best]
    tied = oracle.answers(prompt, count)
    assert alone in tied
    assert len(tied) > 1


def test_rows_that_are_kept_are_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    made = Rows(path).run("a", lambda: {"value": 1})
    again = Rows(path)
    assert again.run("a", lambda: pytest.fail("ran again")) == made
    assert "b" not in again
    assert again.run("b", lambda: {"value": 2})["value"] == 2
    assert len(path.read_text().splitlines()) == 2
    assert Rows(None).run("a", lambda: {"value": 3})["value"] == 3
