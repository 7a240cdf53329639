"""Batch jobs from files: both forms, what texts share, and every refusal with its line."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from bench.traces.batchmix import Kind, mixed_job
from muxcluster.core.errors import ConfigError
from muxcluster.workload.batchjob import BatchJob
from muxcluster.workload.files.batchfile import read_batch


def _file(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "job.jsonl"
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def _prompts(job: BatchJob) -> list[list[int]]:
    ends = zip(job.offsets[:-1].tolist(), job.offsets[1:].tolist(), strict=True)
    return [job.ids[start:end].tolist() for start, end in ends]


def _openai(prompt: str, **more: object) -> dict:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}]
    body = {"model": "chat", "messages": messages, **more}
    return {"custom_id": prompt, "method": "POST", "url": "/v1/chat/completions", "body": body}


def test_token_ids_and_lengths_are_taken_as_they_stand(tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        {"prompt": [5, 6, 7], "max_tokens": 9},
        {"prompt": [1], "max_tokens": 9, "output_tokens": 4},
        {"prompt": [2, 2], "max_completion_tokens": 8},
        {"prompt": [3]},
    )
    job = read_batch(path, default_output=77)
    assert _prompts(job) == [[5, 6, 7], [1], [2, 2], [3]]
    assert job.output_tokens.tolist() == [9, 4, 8, 77]
    assert (len(job), job.num_known) == (4, 1)


def test_chats_share_what_their_texts_share_at_four_bytes_a_token(tmp_path: Path) -> None:
    path = _file(tmp_path, _openai("a" * 40, max_tokens=3), _openai("a" * 36 + "bcde"))
    job = read_batch(path, default_output=5, model="chat")
    first, second = (np.array(ids) for ids in _prompts(job))
    num_bytes = len("system\nBe brief.\nuser\n\n") + 40
    assert len(first) == len(second) == -(-num_bytes // 4)
    different = np.flatnonzero(first != second)
    assert different[0] == (num_bytes - 5) // 4
    assert job.output_tokens.tolist() == [3, 5]


def test_parts_of_text_and_compressed_files_are_read(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "cd"}]
    listed = {"messages": [{"role": "user", "content": parts}]}
    whole = {"messages": [{"role": "user", "content": "abcd"}]}
    path = tmp_path / "job.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write(json.dumps(listed) + "\n" + json.dumps(whole) + "\n")
    first, second = _prompts(read_batch(path, 1))
    assert first == second


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", ":2: not JSON"),
        ("", ":2: not JSON"),
        ({"prompt": ""}, ":2: prompt: expected text or token ids"),
        ({"prompt": [1, -1]}, ":2: prompt: expected token ids from 0"),
        ({"prompt": [True]}, ":2: prompt: expected token ids from 0"),
        ({"prompt": [1], "max_tokens": 0}, ":2: max_tokens: expected a whole number from 1"),
        ({"prompt": [1], "model": "other"}, ":2: model: a job is for one model: expected 'chat'"),
        ({"body": 3}, ":2: body: expected a JSON object"),
        ({"messages": []}, ":2: messages: expected a list"),
        ({"messages": [{"role": "user"}]}, ":2: messages: expected role and content"),
        ({"messages": ["hi"]}, ":2: messages: expected objects"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            ":2: messages: expected parts of text",
        ),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: object, message: str) -> None:
    path = _file(tmp_path, {"prompt": "good", "model": "chat"}, line)
    with pytest.raises(ConfigError, match=message):
        read_batch(path, 1)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"job\.jsonl: no request"):
        read_batch(_file(tmp_path), 1)
    with pytest.raises(ConfigError, match="not readable"):
        read_batch(tmp_path / "missing.jsonl", 1)


def test_a_mix_shares_as_its_kinds_say() -> None:
    kinds = [Kind(0.5, 10, 100, 20, 5), Kind(0.5, 1, 0, 60, 50)]
    job = mixed_job(kinds, 400, np.random.default_rng(3))
    again = mixed_job(kinds, 400, np.random.default_rng(3))
    assert np.array_equal(job.ids, again.ids)
    assert len(job) == job.num_known == 400
    heads = [tuple(prompt[:8]) for prompt in _prompts(job)]
    counts = sorted((heads.count(head) for head in set(heads)), reverse=True)
    assert counts[:20] == [10] * 20 and counts[20:] == [1] * 200
    # groups of ten have ten times the variance of their mean prefix
    assert 80 < np.diff(job.offsets).mean() < 100
    assert 22 < job.output_tokens.mean() < 33
