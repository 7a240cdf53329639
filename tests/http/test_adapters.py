"""Adapters as models of their own, with OpenAI's client over HTTP and a real unit."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest

from tests.adapters import merged, write_adapter
from tests.batch.jobs import line_of
from tests.http.batches.clients import ended, read_lines, submit
from tests.http.live_server import NAME, configured, live_server
from tests.oracles import GreedyOracle

NUM_TOKENS = 8
ASK = {"max_tokens": NUM_TOKENS, "temperature": 0}
IDS = {"return_token_ids": True, "ignore_eos": True}
USER = [{"role": "user", "content": "Say hello"}]
RANKS = {"first": 2, "team/second": 6}


@dataclass(frozen=True)
class Served:
    client: openai.OpenAI
    url: str
    oracles: Mapping[str, GreedyOracle]

    def complete(self, model: str, prompt: str = "Many models share one engine") -> list[int]:
        """The tokens of a completion, after comparing them with Hugging Face's."""
        answer = self.client.completions.create(model=model, prompt=prompt, **ASK, extra_body=IDS)
        assert answer.model == model
        choice = answer.choices[0]
        self.oracles[model].check(choice.prompt_token_ids, choice.token_ids)
        return list(choice.token_ids)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("adapters")
    sections = [{"name": name, "path": f"lora-{rank}"} for name, rank in RANKS.items()]
    file = configured(folder, adapters=sections)
    base: Path = folder / NAME
    oracles = {NAME: GreedyOracle(base)}
    for name, rank in RANKS.items():
        adapter = write_adapter(folder / f"lora-{rank}", base, rank=rank, seed=rank)
        oracles[name] = GreedyOracle(merged(folder / f"merged-{rank}", base, adapter))
    with (
        live_server(file) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield Served(client, url, oracles)


def test_each_is_listed_with_its_parent(served: Served) -> None:
    listed = {each.id: each.parent for each in served.client.models.list()}
    assert listed == {NAME: None, "first": NAME, "team/second": NAME}
    assert served.client.models.retrieve("team/second").parent == NAME


def test_completions_of_all_at_once_are_hugging_faces(served: Served) -> None:
    names = [NAME, *RANKS] * 3
    with ThreadPoolExecutor(len(names)) as threads:
        found = list(threads.map(served.complete, names))
    assert len({tuple(tokens) for tokens in found}) == 3
    assert found[:3] == found[3:6] == found[6:]


def test_chats_whole_and_streamed(served: Served) -> None:
    ask = {"messages": USER, **ASK, "extra_body": IDS}
    for model in served.oracles:
        whole = served.client.chat.completions.create(model=model, **ask)
        chunks = list(served.client.chat.completions.create(model=model, stream=True, **ask))
        assert {chunk.model for chunk in chunks} == {whole.model} == {model}
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == whole.choices[0].message.content
        prompt, tokens = whole.prompt_token_ids, whole.choices[0].token_ids
        served.oracles[model].check(prompt, tokens)


def test_usage_tells_that_no_prefix_is_shared(served: Served) -> None:
    prompt = "Prefill comes first; decode goes on. " * 6

    def num_cached(model: str) -> int:
        answer = served.client.completions.create(model=model, prompt=prompt, **ASK)
        details = answer.usage.prompt_tokens_details
        return 0 if details is None else details.cached_tokens or 0

    assert [num_cached(model) for model in served.oracles] == [0, 0, 0]
    assert all(num_cached(model) > 0 for model in served.oracles)


def test_an_unknown_one_and_none(served: Served) -> None:
    with pytest.raises(openai.NotFoundError, match="served: tiny, first, team/second"):
        served.client.completions.create(model="third", prompt="x")
    # without a name, where it may be left out, it is the model itself
    assert httpx.post(f"{served.url}/tokenize", json={"prompt": "x"}).status_code == 200


def test_lines_of_a_batch(served: Served) -> None:
    body = {"prompt": "Many models", **ASK, **IDS}
    lines = [line_of(name, body={"model": name, **body}) for name in served.oracles]
    done = ended(served.client, submit(served.client, lines).id)
    assert (done.status, done.request_counts.completed) == ("completed", 3)
    for name, line in read_lines(served.client, done.output_file_id).items():
        answer = line["response"]["body"]
        choice = answer["choices"][0]
        assert answer["model"] == name
        served.oracles[name].check(choice["prompt_token_ids"], choice["token_ids"])


def test_metrics_and_the_live_view_know_their_names(served: Served) -> None:
    served.complete("first")
    metrics = httpx.get(f"{served.url}/metrics").text
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="first"}' in (
        metrics
    )
    live = httpx.get(f"{served.url}/v1/cluster/live").json()
    models = {each["name"]: each for each in live["models"]}
    assert models.keys() == served.oracles.keys()
    assert models["first"]["units"] == models[NAME]["units"] != []
