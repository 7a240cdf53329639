"""A model whose chat template never ends: its chats are refused, other models are served."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from muxcluster.batch.store.entry import CHAT, Entry
from muxcluster.http.app import create_app
from muxcluster.http.batch_lines import LineAnswerer
from muxcluster.http.settings import ApiSettings
from tests.amounts import slow
from tests.http.fakes import FakeBackend, make_tokenizer, served_model

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = (
    "{% set ns = namespace(s='ab') %}"
    "{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"
)
LONG = "{{ 'x' * 1000000 }}"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(params=[LOOPS, DOUBLING], ids=["loops", "doubling"])
def both(request: Any, tmp_path: Path, served: Any, says: Any, backend: Any) -> FakeBackend:
    """Beside the model "tiny" one called "hostile"."""
    directory = make_tokenizer(tmp_path / "hostile")
    (directory / "chat_template.jinja").write_text(request.param)
    backend.served.append(served_model(directory, "hostile"))
    says("ok")
    found: FakeBackend = backend
    return found


def chat(model: str) -> dict[str, Any]:
    return {"model": model, "messages": MESSAGES}


@pytest.mark.parametrize("path", ["/v1/chat/completions", *slow("/tokenize")])
def test_its_chats_are_400_and_others_are_served_meanwhile(both: FakeBackend, path: str) -> None:
    app = create_app(both, ApiSettings())

    async def run() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            hostile = [
                asyncio.create_task(http.post(path, json=chat("hostile"), timeout=600))
                for _ in range(2)
            ]
            await asyncio.sleep(0)
            for _ in range(20):
                assert (await http.post(path, json=chat("tiny"))).status_code == 200
            for answer in await asyncio.gather(*hostile):
                assert answer.status_code == 400
                error = answer.json()["error"]
                assert error["code"] == "chat_template_limit"
                assert " s" in error["message"] or " MiB" in error["message"]

    asyncio.run(run())
    assert all(request.model == "tiny" for request in both.requests)


def test_a_line_of_a_batch_ends_with_it(both: FakeBackend) -> None:
    service = create_app(both, ApiSettings()).state.service

    async def run() -> bytes:
        answerer = LineAnswerer(service, lenient=False)
        entry = Entry("one", CHAT, chat("hostile"))
        answer = await answerer.answer(0, entry, "batch", lambda num_tokens, is_first: None)
        return answer.result.data

    response = json.loads(asyncio.run(run()))["response"]
    assert response["status_code"] == 400
    assert response["body"]["error"]["code"] == "chat_template_limit"


def test_a_prompt_that_cannot_fit_stays_in_its_process(
    backend: FakeBackend, tmp_path: Path, http: Any
) -> None:
    directory = make_tokenizer(tmp_path / "long")
    (directory / "chat_template.jinja").write_text(LONG)
    backend.served.append(served_model(directory, "long"))
    service = create_app(backend, ApiSettings()).state.service

    async def run() -> None:
        await anext(service.generate(chat("long")))

    with pytest.raises(Exception, match="1000000 characters") as caught:
        asyncio.run(run())
    assert getattr(caught.value, "code", None) == "context_length_exceeded"
