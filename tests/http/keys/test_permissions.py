"""What a key may see and do, and changes of the keys while requests run."""

import threading

import pytest
from starlette.testclient import TestClient

from muxcluster.http.app import create_app
from muxcluster.http.settings import ApiSettings
from muxcluster.tenants.book import KeyBook
from muxcluster.tenants.keys import KeySettings, TenantKey, digest_of
from muxcluster.tenants.limiter import Instant
from muxcluster.tenants.messages import KeyService
from tests.http.fakes import FakeBackend, wait_until
from tests.http.keys.conftest import Ingresses, Start, entry, write


def test_unknown_and_disabled_keys_are_refused(start: Start) -> None:
    ingresses = start(entry("a"), entry("off", enabled=False))
    for name in ("stranger", "off"):
        for which in range(2):
            answer = ingresses.complete(name, which)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert ingresses.complete("a").status_code == 200
    # the hash is no secret: it opens nothing
    digest = entry("a")["sha256"]
    with ingresses.client("a") as client:
        stolen = client.get("/v1/models", headers={"Authorization": f"Bearer {digest}"})
    assert stolen.status_code == 401


def test_a_model_that_is_not_allowed_does_not_exist(start: Start) -> None:
    ingresses = start(entry("a", models=["tiny"]), entry("all"))
    names = [each["id"] for each in ingresses.get("/v1/models", "a").json()["data"]]
    assert names == ["tiny"]
    assert len(ingresses.get("/v1/models", "all").json()["data"]) == 2
    for model in ("other", "nothing"):
        answer = ingresses.complete("a", model=model)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (404, "model_not_found")
        assert error["message"] == f"model '{model}' is not served here; served: tiny"
        assert ingresses.get(f"/v1/models/{model}", "a").status_code == 404
        with ingresses.client("a") as client:
            body = {"model": model, "prompt": "x"}
            assert client.post("/tokenize", json=body).status_code == 404
            chat = {"model": model, "messages": [{"role": "user", "content": "x"}]}
            assert client.post("/v1/chat/completions", json=chat).status_code == 404
            body = {"model": model, "tokens": [70]}
            assert client.post("/detokenize", json=body).status_code == 404
    for path in ("/metrics", "/load"):
        assert ingresses.get(path, "a").status_code == 403
        assert ingresses.get(path, "all").status_code == 200
    for name, status in (("a", 200), ("all", 400)):  # the only model that a key knows needs no name
        with ingresses.client(name) as client:
            assert client.post("/tokenize", json={"prompt": "x"}).status_code == status
    assert ingresses.complete("all", model="other").status_code == 200


def test_no_route_runs_a_model_that_is_not_allowed(start: Start) -> None:
    """Whatever routes there are: each gets bodies that some route takes."""
    ingresses = start(entry("a", models=["tiny"]), entry("all"))
    paths = ingresses.get("/openapi.json", "all").json()["paths"]
    messages = [{"role": "user", "content": "x"}]
    bodies: tuple[dict[str, object], ...] = (
        {"messages": messages, "max_tokens": 4},
        {"messages": messages},
        {"prompt": "x"},
        {"input": "x"},
        {"query": "x", "documents": ["x"]},
        {"tokens": [70]},
    )
    found: dict[str, set[tuple[int, int]]] = {}
    with ingresses.client("a") as one, ingresses.client("all") as other:
        for path in (path for path, methods in paths.items() if "post" in methods):
            for body in ({"model": "other", **fields} for fields in bodies):
                answers = one.post(path, json=body), other.post(path, json=body)
                statuses = answers[0].status_code, answers[1].status_code
                assert statuses[0] >= 400, (path, body)
                found.setdefault(path, set()).add(statuses)
    generating = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
    counting = ("/v1/messages/count_tokens", "/tokenize", "/detokenize")
    for path in (*generating, *counting):
        assert (404, 200) in found[path], path


def test_classes_batches_and_admin_routes(start: Start) -> None:
    ingresses = start(
        entry("now", classes=["interactive"]),
        entry("later", classes=["batch"]),
        entry("limited", tokens_per_day=100),
    )
    for name, tier, status in (
        ("now", "flex", 403),
        ("now", "default", 200),
        ("later", "flex", 200),
        ("later", "default", 403),
    ):
        answer = ingresses.complete(name, service_tier=tier)
        assert answer.status_code == status
        if status == 403:
            assert answer.json()["error"]["code"] == "permission_denied"
    for name, status in (("now", 403), ("limited", 403), ("later", 404)):
        # 404: this server has no batch service
        assert ingresses.get("/v1/batches", name).status_code == status
        assert ingresses.get("/v1/files/x", name).status_code == status
        for path in ("/usage", "/v1/cluster/live"):
            assert ingresses.get(path, name).status_code == 403
    assert ingresses.get("/usage", "admin").status_code == 200
    assert ingresses.get("/usage?since=yesterday", "admin").status_code == 400
    assert ingresses.get("/usage?of=a", "admin").status_code == 400


def test_keys_of_the_settings_stay_valid_and_are_counted(start: Start) -> None:
    ingresses = start(entry("a"), api_key="old-secret", admin_key="boss-secret")
    assert ingresses.complete("old").status_code == 200
    assert ingresses.complete("boss", 1).status_code == 200
    assert ingresses.get("/usage", "boss").status_code == 200
    assert ingresses.get("/usage", "old").status_code == 403
    names = [row["key"] for row in ingresses.settled(2)]
    assert names == ["server.admin_key", "server.api_key"]


def test_keys_change_under_load_without_a_failed_request(
    start: Start, keys_file, backend: FakeBackend
) -> None:
    backend.delay_s = 0.001
    stays = entry("stays", requests_per_minute=10**6)
    ingresses = start(stays, entry("goes"))
    statuses: list[int] = []
    is_over = threading.Event()

    def load(which: int) -> None:
        while not is_over.is_set():
            statuses.append(ingresses.complete("stays", which).status_code)

    threads = [threading.Thread(target=load, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    try:
        write(keys_file, stays, entry("comes"))
        _until_known(ingresses, "comes", "goes")
        # a file that is wrong changes nothing
        keys_file.write_text("keys: [{name: x}]")
        write(keys_file, stays, entry("goes"))
        _until_known(ingresses, "goes", "comes")
        write(keys_file, {**stays, "requests_per_minute": 1})
        assert wait_until(lambda: 429 in statuses)
        assert set(statuses) == {200, 429}
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def _until_known(ingresses: Ingresses, known: str, unknown: str) -> None:
    for which in range(2):
        for name, status in ((known, 200), (unknown, 401)):
            assert wait_until(
                lambda n=name, w=which, s=status: ingresses.get("/v1/models", n, w).status_code == s
            )


def test_a_wrong_file_leaves_the_keys_as_they_were(start: Start, keys_file, caplog) -> None:
    ingresses = start(entry("a"))
    keys_file.write_text("keys: [{name: a, sha256: short}]")
    told = "the keys stay as they were"
    assert wait_until(lambda: any(told in record.message for record in caplog.records))
    keys_file.unlink()
    assert wait_until(
        lambda: any("no such file" in record.getMessage() for record in caplog.records)
    )
    assert ingresses.complete("a").status_code == 200
    write(keys_file, entry("b"))
    _until_known(ingresses, "b", "a")


def test_without_an_admin_no_tenant_sees_what_all_do(backend: FakeBackend, tmp_path) -> None:
    key = TenantKey("a", digest_of(b"a"))
    host = KeyBook(tmp_path, lambda: Instant(0.0, 0.0))
    host.replace_keys([key])
    settings = ApiSettings(keys=KeySettings(str(tmp_path), (key,)))
    with TestClient(create_app(backend, settings, key_service=host)) as client:
        assert wait_until(lambda: client.get("/ready").status_code == 200)
        headers = {"Authorization": "Bearer a"}
        assert client.get("/v1/models", headers=headers).status_code == 200
        for path in ("/v1/cluster/live", "/usage"):
            assert client.get(path, headers=headers).status_code == 403
    host.close()


class Silent:
    """A counter that has not started yet."""

    async def table(self, caller: str, known_version: str) -> None:
        return None


@pytest.mark.parametrize("key", ["mine", "other"])
def test_before_the_keys_are_read_only_those_of_the_settings_are_known(
    backend: FakeBackend, tmp_path, key: str
) -> None:
    keys = KeySettings(str(tmp_path), (TenantKey("a", "0" * 64),))
    settings = ApiSettings(api_key="mine", keys=keys)
    service: KeyService = Silent()  # type: ignore[assignment]
    with TestClient(create_app(backend, settings, key_service=service)) as client:
        answer = client.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
        assert client.get("/ready").status_code == 503
    if key == "mine":
        assert answer.status_code == 200
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "keys_unknown")
