"""One `muxcluster serve` with three tiny models for all tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.cluster.conftest import ServerProcess


@pytest.fixture(scope="package")
def server(config_file: Path) -> Iterator[ServerProcess]:
    """The server, which is ready."""
    shared = ServerProcess("serve", str(config_file), "--port", "0")
    try:
        shared.url()
        yield shared
    finally:
        if shared.process.poll() is None:
            shared.stop()


@pytest.fixture(scope="package")
def url(server: ServerProcess) -> str:
    return server.url()


@pytest.fixture(scope="package")
def client(url: str) -> Iterator[OpenAI]:
    """OpenAI's own client of it."""
    with OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as openai:
        yield openai
