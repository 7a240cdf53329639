"""The batch service behind an actor: its errors come through, or say that it is not there."""

import asyncio
import pickle
from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from muxcluster.batch.service.settings import BatchSettings
from muxcluster.cluster.ingress import batch_client as client_module
from muxcluster.cluster.ingress.batch_client import BatchServiceClient
from muxcluster.core.errors import NotFound, NotReady, StorageFailed
from muxcluster.http.settings import ApiSettings


class FakeMethod:
    def __init__(self, answer):
        self._answer = answer
        self.num_calls = 0

    async def remote(self, *args):
        self.num_calls += 1
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class FakeHost:
    """An actor's handle that answers everything alike."""

    def __init__(self, answer):
        self.ask = FakeMethod(answer)


@pytest.fixture
def hosts(monkeypatch):
    """Those that are made, one after the other."""
    made = []
    monkeypatch.setattr(client_module, "make_host", lambda settings, controller: made.pop(0))
    return made


@pytest.fixture
def batch_service(tmp_path):
    return BatchServiceClient(ApiSettings(batch=BatchSettings(str(tmp_path))), None)


@pytest.mark.parametrize(
    "error",
    [NotFound("no file", "file_id"), StorageFailed(Path("/x"), "full"), NotReady("no", 3, "x")],
)
def test_the_services_errors_come_through(batch_service, hosts, error):
    sent = pickle.loads(pickle.dumps(error))
    hosts.append(FakeHost(RayTaskError("ask", "Traceback", sent).as_instanceof_cause()))
    with pytest.raises(type(error)) as caught:
        asyncio.run(batch_service.file("me", "file-a"))
    assert str(caught.value) == str(error)
    assert vars(caught.value) == vars(error)


def test_a_host_that_restarts_is_waited_for_and_one_that_died_is_made_again(batch_service, hosts):
    hosts.extend([FakeHost(ActorUnavailableError("gone", None)), FakeHost({"id": "file-a"})])
    first, second = hosts

    async def ask():
        with pytest.raises(NotReady) as caught:
            await batch_service.file("me", "file-a")
        assert caught.value.code == "batches_lost"
        assert hosts == [second]
        first.ask = FakeMethod(ActorDiedError())
        with pytest.raises(NotReady):
            await batch_service.file("me", "file-a")
        return await batch_service.file("me", "file-a")

    assert asyncio.run(ask()) == {"id": "file-a"}


def test_nothing_is_started_where_no_batches_are_kept(batch_service, hosts):
    asyncio.run(batch_service.start())
    assert asyncio.run(batch_service.figures()) is None


def test_other_settings_take_a_new_host(batch_service, hosts, tmp_path, monkeypatch):
    (tmp_path / "batches.sqlite").touch()
    old, new = FakeHost(None), FakeHost(None)
    old.settings, new.settings = FakeMethod(ApiSettings()), FakeMethod(None)
    hosts.extend([old, new])
    killed = []
    monkeypatch.setattr(client_module.ray, "kill", killed.append)
    asyncio.run(batch_service.start())
    assert killed == [old]
    assert new.settings.num_calls == 1
