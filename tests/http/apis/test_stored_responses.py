"""Kept responses by the real openai client: read, gone on with, made in the background, deleted."""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest

from muxcluster.core.errors import EngineFailure
from muxcluster.core.request import ServiceClass
from muxcluster.http.apis.responses import keeping, store
from muxcluster.http.apis.responses.store import LocalResponseStore
from muxcluster.http.app import AppParts, create_app
from muxcluster.http.settings import ApiSettings, StoreSettings
from tests.http.apis.calling import CALL, SCHEMA
from tests.http.fakes import running_server, wait_until
from tests.http.tool_models import ScriptedModel

TOOLS = [{"type": "function", "name": "get_weather", "parameters": SCHEMA}]


@dataclass(frozen=True)
class Kept:
    model: ScriptedModel
    mine: openai.OpenAI
    yours: openai.OpenAI  # with another key

    def ask(self, text="Hi", **fields):
        return self.mine.responses.create(model="tiny", input=text, **fields)

    def ended(self, response_id: str):
        """The response when it has ended."""
        found = self.mine.responses.retrieve(response_id)
        while found.status in ("queued", "in_progress"):
            time.sleep(0.01)
            found = self.mine.responses.retrieve(response_id)
        return found


@pytest.fixture
def kept(directory: Path, tmp_path: Path) -> Iterator[Kept]:
    model = ScriptedModel(directory)
    settings = ApiSettings(api_key="mine", more_keys=("yours",))
    kept_in = LocalResponseStore(StoreSettings(str(tmp_path / "kept"), 30, 2**30))
    app = create_app(model.backend, settings, parts=AppParts(responses=kept_in))
    with (
        running_server(app) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="mine", max_retries=0) as mine,
        openai.OpenAI(base_url=f"{url}/v1", api_key="yours", max_retries=0) as yours,
    ):
        yield Kept(model, mine, yours)


def test_a_response_is_read_again_and_deleted(kept: Kept) -> None:
    kept.model.says = ["Hello there."]
    made = kept.ask("Who?", metadata={"a": "b"})
    assert made.to_dict()["store"] is True
    found = kept.mine.responses.retrieve(made.id)
    assert found.to_dict() == made.to_dict()
    (item,) = kept.mine.responses.input_items.list(made.id).data
    assert (item.role, item.content[0].text) == ("user", "Who?")
    for call in (kept.yours.responses.retrieve, kept.yours.responses.delete):
        with pytest.raises(openai.NotFoundError):
            call(made.id)
    kept.mine.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        kept.mine.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        kept.mine.responses.delete(made.id)


def test_what_is_not_to_be_kept_is_not(kept: Kept) -> None:
    made = kept.ask(store=False)
    assert made.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError):
        kept.mine.responses.retrieve(made.id)


def test_a_conversation_goes_on(kept: Kept) -> None:
    """With what was said, but without the instructions of before, as at OpenAI."""
    kept.model.says = [f"Let me see.\n{CALL}"]
    first = kept.ask("Weather?", instructions="Be brief.", tools=TOOLS)
    (call,) = [item for item in first.output if item.type == "function_call"]
    kept.model.says = ["Cold."]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "-3"}
    second = kept.ask([output], previous_response_id=first.id, tools=TOOLS)
    assert second.previous_response_id == first.id
    kept.model.says = ["Yes."]
    kept.ask("Sure?", previous_response_id=second.id)
    prompt = kept.model.prompt()
    assert "Be brief." not in prompt
    parts = ["Weather?", "Let me see.", "get_weather", "-3", "Cold.", "Sure?"]
    places = [prompt.index(part) for part in parts]
    assert places == sorted(places)
    # both branches of a conversation go on
    kept.ask("Other?", previous_response_id=first.id)
    assert "Cold." not in kept.model.prompt()


def test_a_conversation_that_is_gone_or_anothers(kept: Kept) -> None:
    first = kept.ask("One")
    second = kept.ask("Two", previous_response_id=first.id)
    with pytest.raises(openai.NotFoundError) as refused:
        kept.yours.responses.create(model="tiny", input="x", previous_response_id=second.id)
    assert refused.value.param == "previous_response_id"
    kept.mine.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match=first.id):
        kept.ask("Three", previous_response_id=second.id)


def test_a_conversation_that_is_too_long(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kept.ask("One")
    second = kept.ask("Two", previous_response_id=first.id)
    third = kept.ask("Three", previous_response_id=second.id)
    short = store._TURNS.replace(f"{store.MOST_TURNS}", "2")
    monkeypatch.setattr(store, "_TURNS", short)
    kept.ask("Three", previous_response_id=second.id)
    with pytest.raises(openai.BadRequestError, match="too long") as refused:
        kept.ask("Four", previous_response_id=third.id)
    assert refused.value.param == "previous_response_id"
    kept.mine.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match=first.id):
        kept.ask("Four", previous_response_id=third.id)


def test_a_stream_is_kept_before_its_end_is_told(kept: Kept) -> None:
    kept.model.says = ["Hello there."]
    with kept.mine.responses.stream(model="tiny", input="Hi") as stream:
        for event in stream:
            if event.type == "response.completed":
                found = kept.mine.responses.retrieve(event.response.id)
                assert found.output_text == "Hello there."
        final = stream.get_final_response()
    assert (found.id, found.output_text) == (final.id, final.output_text)


def test_in_the_background(kept: Kept) -> None:
    kept.model.says = ["Hello there."]
    kept.model.backend.most_deltas = 1
    made = kept.ask(background=True)
    assert (made.status, made.background, made.output) == ("in_progress", True, [])
    assert kept.mine.responses.retrieve(made.id).status == "in_progress"
    with pytest.raises(openai.BadRequestError, match="has not ended"):
        kept.ask(previous_response_id=made.id)
    wait_until(lambda: bool(kept.model.backend.requests))
    assert kept.model.backend.requests[-1].service_class is ServiceClass.BATCH
    kept.model.backend.most_deltas = float("inf")
    found = kept.ended(made.id)
    assert (found.status, found.output_text, found.id) == ("completed", "Hello there.", made.id)
    assert found.usage.output_tokens > 0
    kept.ask("More", previous_response_id=made.id)
    assert "Hello there." in kept.model.prompt()


def test_a_cancelled_one_is_given_up(kept: Kept) -> None:
    kept.model.backend.most_deltas = 1
    made = kept.ask(background=True)
    wait_until(lambda: bool(kept.model.backend.requests))
    with pytest.raises(openai.NotFoundError):
        kept.yours.responses.cancel(made.id)
    assert kept.mine.responses.cancel(made.id).status == "cancelled"
    wait_until(lambda: bool(kept.model.backend.aborted))
    assert kept.mine.responses.retrieve(made.id).status == "cancelled"
    assert kept.mine.responses.cancel(made.id).status == "cancelled"
    kept.model.backend.most_deltas = float("inf")
    whole = kept.ask()
    with pytest.raises(openai.BadRequestError, match="in the background"):
        kept.mine.responses.cancel(whole.id)


def test_one_whose_server_is_gone_has_failed(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not cancelled, and a conversation goes on from it."""
    monkeypatch.setattr(keeping, "_LOST_AFTER_S", -1e6)
    kept.model.backend.most_deltas = 1
    lost, other = kept.ask("Where?", background=True), kept.ask("When?", background=True)
    wait_until(lambda: len(kept.model.backend.requests) == 2)
    kept.ask("More", previous_response_id=lost.id, background=True)
    wait_until(lambda: len(kept.model.backend.requests) == 3)
    assert "Where?" in kept.model.prompt()
    assert kept.mine.responses.retrieve(other.id).status == "failed"
    assert kept.mine.responses.cancel(other.id).status == "failed"
    assert kept.mine.responses.retrieve(other.id).status == "failed"


def test_one_that_fails_says_why(kept: Kept) -> None:
    kept.model.backend.error = EngineFailure("the unit burned down")
    made = kept.ask(background=True)
    found = kept.ended(made.id)
    assert found.status == "failed"
    assert found.error is not None and "burned down" in found.error.message


def test_what_cannot_be_done_in_the_background(kept: Kept) -> None:
    for fields, param in (
        ({"stream": True}, "stream"),
        ({"store": False}, "background"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            kept.ask(background=True, **fields)
        assert refused.value.param == param


def test_pages_of_input(kept: Kept) -> None:
    items = [{"role": "user", "content": f"text {number}"} for number in range(5)]
    made = kept.ask(items)

    def texts(**query):
        page = kept.mine.responses.input_items.list(made.id, **query)
        return [item.content for item in page.data], page

    assert texts()[0] == [f"text {number}" for number in (4, 3, 2, 1, 0)]
    first, page = texts(limit=2, order="asc")
    assert (first, page.has_more) == (["text 0", "text 1"], True)
    rest, page = texts(order="asc", after=page.data[-1].id)
    assert (rest, page.has_more) == (["text 2", "text 3", "text 4"], False)
    with pytest.raises(openai.BadRequestError):
        texts(limit=0)


def test_a_server_that_ends_leaves_failed_ones(directory: Path, tmp_path: Path) -> None:
    model = ScriptedModel(directory)
    model.backend.most_deltas = 1
    settings = StoreSettings(str(tmp_path / "kept"), 30, 2**30)
    kept_in = LocalResponseStore(settings)
    app = create_app(model.backend, ApiSettings(), parts=AppParts(responses=kept_in))
    with (
        running_server(app) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        made = client.responses.create(model="tiny", input="Hi", background=True)
        wait_until(lambda: bool(model.backend.requests))
    again = create_app(
        model.backend, ApiSettings(), parts=AppParts(responses=LocalResponseStore(settings))
    )
    with (
        running_server(again) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        found = client.responses.retrieve(made.id)
    assert found.status == "failed"
    assert json.loads(found.to_json())["error"]["code"] == "server_shutting_down"


@dataclass
class SlowStore:
    """A store that ends a response only when it may."""

    store: LocalResponseStore
    ends: asyncio.Event
    may_end: asyncio.Event

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)

    async def end(self, owner: str, response_id: str, response: bytes) -> bool:
        self.ends.set()
        await self.may_end.wait()
        return await self.store.end(owner, response_id, response)


def test_a_whole_response_is_kept_though_its_server_closes(directory: Path, tmp_path: Path) -> None:
    asyncio.run(_close_while_an_end_is_kept(directory, tmp_path))


async def _close_while_an_end_is_kept(directory: Path, tmp_path: Path) -> None:
    model = ScriptedModel(directory)
    model.says = ["Hello there."]
    kept_in = LocalResponseStore(StoreSettings(str(tmp_path / "kept"), 30, 2**30))
    slow = SlowStore(kept_in, asyncio.Event(), asyncio.Event())
    app = create_app(model.backend, ApiSettings(), parts=AppParts(responses=slow))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://server") as client,
    ):
        asked = {"model": "tiny", "input": "Hi", "background": True}
        made = (await client.post("/v1/responses", json=asked)).json()
        await asyncio.wait_for(slow.ends.wait(), 60)
        closing = asyncio.create_task(app.state.background.close())
        await asyncio.sleep(0.05)
        refused = await client.post("/v1/responses", json=asked)
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            503,
            "server_shutting_down",
        )
        slow.may_end.set()
        await closing
        found = (await client.get(f"/v1/responses/{made['id']}")).json()
    assert found["status"] == "completed"
