"""Fixtures of the HTTP tests: one model directory, a fresh backend and app for each test."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import openai
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from muxcluster.core.served import ServedModel
from muxcluster.http.app import create_app
from muxcluster.http.settings import ApiSettings
from muxcluster.text.tokenizer import Tokenizer
from tests.http.fakes import FakeBackend, make_tokenizer, running_server, served_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def served(model_dir: Path) -> ServedModel:
    return served_model(model_dir)


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.load(model_dir)


@pytest.fixture
def backend(served: ServedModel) -> FakeBackend:
    return FakeBackend([served])


@pytest.fixture
def says(backend: FakeBackend, tokenizer: Tokenizer) -> Callable[..., list[int]]:
    """Makes the model say a text (then its end token); returns the text's tokens."""

    def script(text: str, *, ends: bool = True) -> list[int]:
        tokens = tokenizer.encode(text, False)
        end: Sequence[int] = backend.served[0].eos_token_ids if ends else ()
        backend.script = lambda request: [*tokens, *end]
        return tokens

    return script


@pytest.fixture
def app(backend: FakeBackend) -> FastAPI:
    return create_app(backend, ApiSettings())


@pytest.fixture
def http(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


@pytest.fixture
def client(app: FastAPI) -> Iterator[openai.OpenAI]:
    with (
        running_server(app) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client
