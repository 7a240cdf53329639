"""The routes that load and unload adapters: who may call them, paths, refusals."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from muxcluster.core.errors import InvalidValue, ModelNotFound
from muxcluster.core.inputs.adapters.load import AdapterLoad, LoadedAdapter
from muxcluster.core.served import ServedModel
from muxcluster.http.app import AppParts, create_app
from muxcluster.http.settings import ApiSettings
from tests.http.fakes import FakeBackend

ADMIN = {"Authorization": "Bearer admin"}
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


class FakeControl:
    """Serves what it is asked to, by a fake backend; "bad" is refused."""

    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend
        self.asked: list[AdapterLoad] = []

    async def load_adapter(self, asked: AdapterLoad) -> ServedModel:
        self.asked.append(asked)
        if asked.name == "bad":
            raise InvalidValue("FILE: tensor x has rank 9", "lora_path")
        base, *others = self._backend.served
        loaded = LoadedAdapter(asked.path, f"{len(self.asked)}")
        served = replace(base, name=asked.name, base=base.name, loaded=loaded)
        self._backend.served = [base, *(e for e in others if e.name != asked.name), served]
        return served

    async def unload_adapter(self, name: str) -> None:
        left = [each for each in self._backend.served if each.name != name]
        if len(left) == len(self._backend.served):
            raise ModelNotFound(f"no adapter {name} is loaded", "lora_name")
        self._backend.served = left


@pytest.fixture
def control(backend: FakeBackend) -> FakeControl:
    return FakeControl(backend)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "adapters" / "sql").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "adapters" / "link").symlink_to(tmp_path / "secret")
    return tmp_path / "adapters"


@pytest.fixture
def http(backend: FakeBackend, control: FakeControl, folder: Path) -> Iterator[TestClient]:
    settings = ApiSettings(api_key="client", admin_key="admin", adapter_folders=(str(folder),))
    with TestClient(create_app(backend, settings, parts=AppParts(adapters=control))) as client:
        client.headers.update(ADMIN)
        yield client


def names(http: TestClient) -> dict[str, str | None]:
    return {each["id"]: each["parent"] for each in http.get("/v1/models").json()["data"]}


def test_an_adapter_comes_is_replaced_and_goes(http, control, backend, folder, says) -> None:
    says("hello")
    asked = {"lora_name": "team/sql", "lora_path": str(folder / "sql")}
    loaded = http.post(LOAD, json=asked)
    assert loaded.text == "Success: LoRA adapter 'team/sql' added successfully."
    assert names(http) == {"tiny": None, "team/sql": "tiny"}
    again = http.post(LOAD, json={**asked, "load_inplace": True, "base_model_name": "tiny"})
    assert again.status_code == 200
    path = str(folder / "sql")
    assert control.asked == [
        AdapterLoad("team/sql", path),
        AdapterLoad("team/sql", path, "tiny", replaces=True),
    ]
    body = {"model": "team/sql", "prompt": "hi"}
    assert http.post("/v1/completions", json=body).json()["model"] == "team/sql"
    sent = backend.requests[-1]
    assert (sent.model, sent.adapter, sent.adapter_path) == ("tiny", "team/sql@2", path)
    assert http.post(UNLOAD, json={"lora_name": "team/sql"}).status_code == 200
    assert names(http) == {"tiny": None}
    assert http.post("/v1/completions", json=body).status_code == 404
    assert http.post(UNLOAD, json={"lora_name": "team/sql"}).status_code == 404


def test_only_the_admin_key_may(http, control) -> None:
    for route in (LOAD, UNLOAD):
        body = {"lora_name": "x", "lora_path": "sql"}
        refused = http.post(route, json=body, headers={"Authorization": "Bearer client"})
        assert refused.status_code == 403
        assert http.post(route, json=body, headers={"Authorization": ""}).status_code == 401
    assert control.asked == []


@pytest.mark.parametrize("path", ["/etc", "../secret", "link", "sql/../../secret", "/"])
def test_paths_outside_the_folders_are_refused(http, control, path: str) -> None:
    refused = http.post(LOAD, json={"lora_name": "x", "lora_path": path})
    assert (refused.status_code, refused.json()["error"]["param"]) == (403, "lora_path")
    assert control.asked == []


def test_links_that_form_a_loop_are_refused(http, control, folder) -> None:
    (folder / "loop").symlink_to(folder / "loop")
    refused = http.post(LOAD, json={"lora_name": "x", "lora_path": "loop"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "lora_path")
    assert control.asked == []


def test_a_relative_path_starts_from_the_folder(http, control, folder) -> None:
    assert http.post(LOAD, json={"lora_name": "x", "lora_path": "sql"}).status_code == 200
    assert control.asked[0].path == str(folder / "sql")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"lora_path": "sql"}, "lora_name"),
        ({"lora_name": "x"}, "lora_path"),
        ({"lora_name": "x@y", "lora_path": "sql"}, "lora_name"),
        ({"lora_name": "x", "lora_path": "s\0l"}, "lora_path"),
        ({"lora_name": "x", "lora_path": "sql", "load_inplace": "yes"}, "load_inplace"),
        ({"lora_name": "x", "lora_path": "sql", "is_3d_lora_weight": True}, "is_3d_lora_weight"),
        ({"lora_name": "bad", "lora_path": "sql"}, "lora_path"),
    ],
)
def test_a_wrong_body_names_the_field(http, body: dict[str, object], param: str) -> None:
    refused = http.post(LOAD, json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_without_folders_none_may_be_loaded(backend, control) -> None:
    settings = ApiSettings(admin_key="admin")
    with TestClient(create_app(backend, settings, parts=AppParts(adapters=control))) as client:
        body = {"lora_name": "x", "lora_path": "/x"}
        refused = client.post(LOAD, json=body, headers=ADMIN)
    assert refused.status_code == 403
    assert "server.adapter_folders is not set" in refused.json()["error"]["message"]
