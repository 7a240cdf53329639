"""Speculation over HTTP: the same texts, and what `usage` and metrics say of draft tokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.http.live_server import NAME, configured, live_server

ALWAYS = {"method": "ngram", "when": "always", "prompt_lookup_min": 1}
BODY: dict[str, Any] = {
    "model": NAME,
    "prompt": "one two three, one two three, one two",
    "max_tokens": 60,
    "seed": 3,
    "extra_body": {"ignore_eos": True},
}
# Greedy, drawn from few tokens (so that they repeat), and cut by a stop string.
FEW = {str(token): 60.0 for token in (70, 71, 72)}
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 1, "logit_bias": FEW, "n": 2},
    "logprobs": {"temperature": 1, "logit_bias": FEW, "logprobs": 2},
}


def texts(url: str) -> dict[str, list[str]]:
    """Of every kind, streamed too."""
    found: dict[str, list[str]] = {}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        for kind, more in ASKED.items():
            answer = client.completions.create(**BODY, **more)
            found[kind] = [choice.text for choice in answer.choices]
            streamed = {choice.index: "" for choice in answer.choices}
            for chunk in client.completions.create(**BODY, **more, stream=True):
                for choice in chunk.choices:
                    streamed[choice.index] += choice.text
            assert list(streamed.values()) == found[kind]
        stop = found["drawn"][0][20:23]
        cut = client.completions.create(**BODY, **ASKED["drawn"], stop=[stop])
        found["stop"] = [choice.text for choice in cut.choices]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("speculation")


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, list[str]]:
    with live_server(configured(folder)) as url:
        return texts(url)


@pytest.fixture(scope="module")
def url(folder: Path, expected: dict[str, list[str]]) -> Iterator[str]:
    with live_server(configured(folder, speculation=ALWAYS)) as url:
        yield url


@pytest.mark.slow
def test_texts_are_those_without_speculation(url: str, expected: dict[str, list[str]]) -> None:
    assert texts(url) == expected


def test_usage_and_metrics_count_draft_tokens(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        answer = client.completions.create(**BODY, **ASKED["drawn"])
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2 * BODY["max_tokens"]
    details = answer.usage.completion_tokens_details
    assert details is not None
    assert 0 < (details.accepted_prediction_tokens or 0) < 2 * BODY["max_tokens"]
    assert (details.rejected_prediction_tokens or 0) > 0
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
        for sample in family.samples
        if sample.name.startswith("vllm:spec_decode")
    }
    drafts, tokens, accepted = (
        values[f"vllm:spec_decode_num_{name}_total"]
        for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    assert 0 < drafts <= tokens <= 4 * drafts
    assert 0 < accepted < tokens


def test_without_speculation_usage_says_nothing_of_it(
    tmp_path: Path, expected: dict[str, list[str]]
) -> None:
    with (
        live_server(configured(tmp_path)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        answer = client.completions.create(**BODY, **ASKED["greedy"])
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is None
