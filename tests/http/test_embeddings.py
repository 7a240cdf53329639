"""Routes of embedding models of a real server; vectors are those of transformers."""

import base64
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
import yaml
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from muxcluster.demo.models import build_model
from tests.batch.jobs import line_of
from tests.engine.dense.test_encoders import encoder
from tests.http.batches.clients import ended, read_lines, submit
from tests.http.live_server import live_server
from tests.models import as_embedder
from tests.oracles import EmbeddingOracle

TOLERANCE = 1e-5
CONTEXT = 200
SIZE = 160  # of the model's hidden states
TEXTS = ["What is a queue?", "A place to wait.", "The weather is fine, as it was yesterday."]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Qwen3-Embedding: no output layer, an end token behind each text, Matryoshka."""
    path = build_model(tmp_path_factory.mktemp("served") / "embedder", "qwen3", seed=5)
    AutoModel.from_pretrained(path).save_pretrained(path)
    as_embedder(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "matryoshka_dimensions": [32, 64]}))
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    marks = [("<|bos|>", 0), ("<|eos|>", 1)]
    tokenizer.post_processor = TemplateProcessing(single="<|bos|> $A <|eos|>", special_tokens=marks)
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def cross_encoder(directory: Path, tokenized: Path) -> None:
    """A tiny model that scores pairs of texts, with the tokenizer of another, but its pairs."""
    auto = AutoModelForSequenceClassification
    encoder(directory, "xlm-roberta", auto, num_labels=1, vocab_size=512, type_vocab_size=1)
    shutil.copy(tokenized / "tokenizer_config.json", directory)
    tokenizer = Tokenizer.from_file(str(tokenized / "tokenizer.json"))
    marks = [("<|bos|>", 0), ("<|eos|>", 1)]
    tokenizer.post_processor = TemplateProcessing(
        single="<|bos|> $A <|eos|>",
        pair="<|bos|> $A <|eos|> <|eos|> $B <|eos|>",
        special_tokens=marks,
    )
    tokenizer.save(str(directory / "tokenizer.json"))


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    chat = build_model(model.parent / "chat", "llama", seed=6)
    as_embedder(encoder(model.parent / "encoder", "bert"), pooling="mean_tokens")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(chat / name, model.parent / "encoder" / name)
    cross_encoder(model.parent / "reranker", chat)
    content = {
        "models": [
            {"name": "embedder", "path": "embedder", "max_model_len": CONTEXT},
            {"name": "chat", "path": "chat", "max_model_len": 256},
            {"name": "encoder", "path": "encoder"},
            {"name": "reranker", "path": "reranker"},
        ],
        "cluster": {"nodes": [{"name": "here", "gpu": "cpu", "cores": 1}]},
        "policy": {"partition": "none", "kv_gb": 0.1},
    }
    file = model.parent / "muxcluster.yaml"
    file.write_text(yaml.safe_dump(content))
    with live_server(file) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def oracle(model: Path) -> EmbeddingOracle:
    return EmbeddingOracle(model)


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Any:
    return AutoTokenizer.from_pretrained(model)


def check(found: Sequence[float], expected: np.ndarray) -> None:
    assert len(found) == len(expected)
    assert np.abs(np.array(found) - expected).max() < TOLERANCE


def post(url: str, route: str = "embeddings", **fields: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/{route}", json={"model": "embedder", **fields}, timeout=60)


def refusal(url: str, route: str = "embeddings", **fields: Any) -> tuple[str, str | None, str]:
    """Code, field and message of a 400."""
    answer = post(url, route, **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error["code"], error["param"], error["message"]


@pytest.mark.parametrize("form", ["float", "base64", None])
def test_texts(
    client: openai.OpenAI, oracle: EmbeddingOracle, tokenizer: Any, form: str | None
) -> None:
    """None: the client asks for base64 itself and decodes it."""
    options: dict[str, Any] = {} if form is None else {"encoding_format": form}
    answer = client.embeddings.create(model="embedder", input=TEXTS, user="me", **options)
    assert [each.index for each in answer.data] == [0, 1, 2]
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    assert all((tokens[0], tokens[-1]) == (0, 1) for tokens in ids)
    for each, tokens in zip(answer.data, ids, strict=True):
        vector: Any = each.embedding
        if form == "base64":
            vector = np.frombuffer(base64.b64decode(vector), dtype="<f4")
        check(vector, oracle.embed(tokens))
    assert answer.model == "embedder"
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, ids))


def test_one_text_and_token_ids(
    client: openai.OpenAI, oracle: EmbeddingOracle, tokenizer: Any
) -> None:
    ids: list[int] = tokenizer(TEXTS[0])["input_ids"]
    (one,) = client.embeddings.create(model="embedder", input=TEXTS[0]).data
    check(one.embedding, oracle.embed(ids))
    (one,) = client.embeddings.create(model="embedder", input=[7, 8, 9]).data
    check(one.embedding, oracle.embed([7, 8, 9]))
    lists = [[5] * CONTEXT, [4, 4]]
    for tokens, each in zip(
        lists, client.embeddings.create(model="embedder", input=lists).data, strict=True
    ):
        check(each.embedding, oracle.embed(tokens))


def test_an_encoder(client: openai.OpenAI, model: Path) -> None:
    oracle = EmbeddingOracle(model.parent / "encoder")
    lists = [[3 + (i * j) % 300 for j in range(1, 2 + i)] for i in range(0, 120, 7)]
    answer = client.embeddings.create(model="encoder", input=lists)
    for tokens, each in zip(lists, answer.data, strict=True):
        check(each.embedding, oracle.embed(tokens, pooling="mean"))
    assert answer.usage.prompt_tokens == sum(map(len, lists))


def test_shorter_vectors(
    url: str, client: openai.OpenAI, oracle: EmbeddingOracle, tokenizer: Any
) -> None:
    tokens = tokenizer(TEXTS[0])["input_ids"]
    for size in (32, 64, SIZE):
        (one,) = client.embeddings.create(model="embedder", input=TEXTS[0], dimensions=size).data
        check(one.embedding, oracle.embed(tokens, size))
    code, param, message = refusal(url, input="x", dimensions=33)
    assert (code, param) == ("invalid_value", "dimensions")
    assert message == f"embedder gives vectors of {SIZE} numbers, or of 32, 64"
    assert refusal(url, input="x", dimensions=SIZE + 1)[1] == "dimensions"


def test_a_long_text_is_refused_or_cut(
    url: str, client: openai.OpenAI, oracle: EmbeddingOracle, tokenizer: Any
) -> None:
    text = " ".join(TEXTS * 40)
    code, param, message = refusal(url, input=["x", text])
    assert (code, param) == ("context_length_exceeded", "input[1]")
    assert str(CONTEXT) in message
    assert refusal(url, input=[9] * (CONTEXT + 1))[0] == "context_length_exceeded"
    for most, asked in ((CONTEXT, -1), (10, 10), (3, 3)):
        expected = tokenizer(text, truncation=True, max_length=most)["input_ids"]
        assert (len(expected), expected[-1]) == (most, 1)
        (one,) = client.embeddings.create(
            model="embedder", input=text, extra_body={"truncate_prompt_tokens": asked}
        ).data
        check(one.embedding, oracle.embed(expected))
    (one,) = client.embeddings.create(
        model="embedder", input=[4, 5, 6], extra_body={"truncate_prompt_tokens": 2}
    ).data
    check(one.embedding, oracle.embed([4, 5]))
    for asked in (0, 2, CONTEXT + 1):
        assert refusal(url, input=text, truncate_prompt_tokens=asked)[1] == "truncate_prompt_tokens"


def test_more_texts_than_places_in_the_queue(
    client: openai.OpenAI, oracle: EmbeddingOracle
) -> None:
    lists = [[3 + i % 500, 4 + i // 500] for i in range(600)]
    answer = client.embeddings.create(model="embedder", input=lists)
    assert [each.index for each in answer.data] == list(range(600))
    for i in range(0, 600, 97):
        check(answer.data[i].embedding, oracle.embed(lists[i]))
    assert answer.usage.prompt_tokens == 1200


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({}, "missing_required_parameter", "input"),
        ({"input": []}, "invalid_value", "input"),
        ({"input": [["a"]]}, "invalid_value", "input[0]"),
        ({"input": ["a", 1]}, "invalid_value", "input[1]"),
        ({"input": [99_999]}, "invalid_value", "input"),
        ({"input": [[1], [-1]]}, "invalid_value", "input[1]"),
        ({"input": [1.5]}, "invalid_value", "input[0]"),
        ({"input": ["a"] * 2049}, "invalid_value", "input"),
        ({"input": "", "add_special_tokens": False}, "invalid_value", "input"),
        ({"input": "a", "encoding_format": "hex"}, "invalid_value", "encoding_format"),
        ({"input": "a", "dimensions": 0}, "invalid_value", "dimensions"),
        ({"input": "a", "n": 2}, "unsupported_parameter", "n"),
    ],
)
def test_wrong_bodies(url: str, fields: dict[str, Any], code: str, param: str) -> None:
    assert refusal(url, **fields)[:2] == (code, param)


def test_each_kind_of_model_has_its_routes(url: str, client: openai.OpenAI) -> None:
    code, param, message = refusal(url, model="chat", input="a")
    assert (code, param) == ("invalid_value", "model")
    assert message == "chat generates text and gives no embeddings"
    for call in (
        lambda: client.completions.create(model="embedder", prompt="a"),
        lambda: client.chat.completions.create(
            model="embedder", messages=[{"role": "user", "content": "a"}]
        ),
    ):
        with pytest.raises(openai.BadRequestError, match="generates no text"):
            call()
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="nobody", input="a")
    assert client.completions.create(model="chat", prompt="a").choices


def test_documents_are_ranked_by_their_angle_to_the_query(
    url: str, oracle: EmbeddingOracle, tokenizer: Any
) -> None:
    query, documents = "Where do people wait?", [*TEXTS, *(text.upper() for text in TEXTS)]
    vectors = [oracle.embed(tokenizer(text)["input_ids"]) for text in documents]
    expected = np.array(vectors) @ oracle.embed(tokenizer(query)["input_ids"])
    answer = post(url, "rerank", query=query, documents=documents).json()
    found = {each["index"]: each["relevance_score"] for each in answer["results"]}
    check([found[i] for i in range(len(documents))], expected)
    ranks = [each["index"] for each in answer["results"]]
    assert ranks == np.argsort(-expected).tolist()
    assert [each["document"] for each in answer["results"]] == [
        {"text": documents[i]} for i in ranks
    ]
    num_tokens = sum(len(tokenizer(text)["input_ids"]) for text in [query, *documents])
    assert answer["usage"]["total_tokens"] == num_tokens
    best = post(url, "rerank", query=query, documents=documents, top_n=2, return_documents=False)
    assert best.json()["results"] == [{"index": i, "relevance_score": found[i]} for i in ranks[:2]]


def test_scores_of_one_text_and_of_pairs(url: str, oracle: EmbeddingOracle, tokenizer: Any) -> None:
    vectors = np.array([oracle.embed(tokenizer(text)["input_ids"]) for text in TEXTS])
    answer = post(url, "score", text_1=TEXTS[0], text_2=TEXTS).json()
    assert [each["index"] for each in answer["data"]] == [0, 1, 2]
    check([each["score"] for each in answer["data"]], vectors @ vectors[0])
    answer = post(url, "score", text_1=TEXTS, text_2=TEXTS[::-1]).json()
    check([each["score"] for each in answer["data"]], (vectors * vectors[::-1]).sum(-1))
    answer = post(url, "score", text_1="a", text_2="a").json()
    check([each["score"] for each in answer["data"]], np.ones(1))


def test_a_cross_encoder_reads_two_texts_at_once(url: str, model: Path) -> None:
    path = model.parent / "reranker"
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    oracle = AutoModelForSequenceClassification.from_pretrained(path).eval()

    def score(first: str, second: str) -> float:
        ids = torch.tensor([tokenizer(first, second)["input_ids"]])
        with torch.inference_mode():
            found = oracle(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        return float(found.double().sigmoid())

    query = "Where do people wait?"
    expected = np.array([score(query, text) for text in TEXTS])
    asked = {"model": "reranker", "query": query, "documents": TEXTS}
    answer = post(url, "rerank", **asked).json()
    found = {each["index"]: each["relevance_score"] for each in answer["results"]}
    check([found[i] for i in range(3)], expected)
    assert [each["index"] for each in answer["results"]] == np.argsort(-expected).tolist()
    num_tokens = sum(len(tokenizer(query, text)["input_ids"]) for text in TEXTS)
    assert answer["usage"]["total_tokens"] == num_tokens
    pairs = {"model": "reranker", "text_1": TEXTS, "text_2": TEXTS[::-1]}
    answer = post(url, "score", **pairs).json()
    expected = np.array([score(*pair) for pair in zip(TEXTS, TEXTS[::-1], strict=True)])
    check([each["score"] for each in answer["data"]], expected)
    assert refusal(url, model="reranker", input="a")[1] == "model"
    assert refusal(url, "rerank", **asked, truncate_prompt_tokens=5)[:2] == (
        "unsupported_parameter",
        "truncate_prompt_tokens",
    )
    long = {"model": "reranker", "query": "a b " * CONTEXT, "documents": ["b", "c"]}
    assert refusal(url, "rerank", **long)[:2] == ("context_length_exceeded", "documents[0]")


@pytest.mark.parametrize(
    ("route", "fields", "code", "param"),
    [
        ("rerank", {"documents": ["a"]}, "missing_required_parameter", "query"),
        ("rerank", {"query": "a", "documents": []}, "invalid_value", "documents"),
        ("rerank", {"query": "a", "documents": [5]}, "invalid_value", "documents[0]"),
        ("rerank", {"query": "a", "documents": ["a"] * 2048}, "invalid_value", "documents"),
        ("rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "invalid_value", "top_n"),
        (
            "rerank",
            {"query": "a b " * CONTEXT, "documents": ["b"]},
            "context_length_exceeded",
            "query",
        ),
        ("score", {"text_1": ["a", "b"], "text_2": ["a"]}, "invalid_value", "text_1"),
        ("score", {"text_1": "a"}, "missing_required_parameter", "text_2"),
        (
            "score",
            {"text_1": "a", "text_2": ["b", "a b " * CONTEXT]},
            "context_length_exceeded",
            "text_2[1]",
        ),
        ("score", {"model": "chat", "text_1": "a", "text_2": "b"}, "invalid_value", "model"),
    ],
)
def test_wrong_bodies_of_scores(
    url: str, route: str, fields: dict[str, Any], code: str, param: str
) -> None:
    assert refusal(url, route, **fields)[:2] == (code, param)


def test_a_batch(client: openai.OpenAI, oracle: EmbeddingOracle, tokenizer: Any) -> None:
    url = "/v1/embeddings"
    lines = [
        line_of(f"{i}", url=url, body={"model": "embedder", "input": text})
        for i, text in enumerate(TEXTS)
    ]
    bodies = [{"model": "embedder", "input": [[4, 5], [6]], "encoding_format": "base64"}]
    bodies += [{"model": "chat", "input": "a"}, {"model": "embedder", "input": 5}]
    lines += [line_of(f"more-{i}", url=url, body=body) for i, body in enumerate(bodies)]
    batch = ended(client, submit(client, lines, endpoint=url).id)
    counts = batch.request_counts
    assert counts is not None
    assert (counts.completed, counts.failed) == (4, 2)
    found = read_lines(client, batch.output_file_id)
    for i, text in enumerate(TEXTS):
        body = found[f"{i}"]["response"]["body"]
        check(body["data"][0]["embedding"], oracle.embed(tokenizer(text)["input_ids"]))
    two = found["more-0"]["response"]["body"]["data"]
    for tokens, each in zip([[4, 5], [6]], two, strict=True):
        vector = np.frombuffer(base64.b64decode(each["embedding"]), dtype="<f4")
        check(vector.tolist(), oracle.embed(tokens))
    assert read_lines(client, batch.error_file_id).keys() == {"more-1", "more-2"}
