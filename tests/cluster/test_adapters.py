"""Adapters that come and go on a real server of `muxcluster serve`, over HTTP."""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from muxcluster.demo.models import build_model
from tests.adapters import merged, write_adapter
from tests.cluster.conftest import ServerProcess, StartServer
from tests.oracles import GreedyOracle

ADMIN = {"Authorization": "Bearer admin-key-Qq5"}
PROMPT = "Many models share one engine"
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Served:
    server: ServerProcess
    http: httpx.Client
    folder: Path
    base: Path
    oracles: Mapping[str, GreedyOracle]

    def load(self, name: str, path: str, **more: object) -> httpx.Response:
        body = {"lora_name": name, "lora_path": path, **more}
        return self.http.post("/v1/load_lora_adapter", json=body)

    def unload(self, name: str) -> httpx.Response:
        return self.http.post("/v1/unload_lora_adapter", json={"lora_name": name})

    def check(self, model: str, oracle: str, num_tokens: int = 8) -> None:
        """A completion of `model` has the tokens of an oracle."""
        ask = {"max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
        body = {"model": model, "prompt": PROMPT, "return_token_ids": True, **ask}
        answer = self.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        assert len(choice["token_ids"]) == num_tokens
        self.oracles[oracle].check(choice["prompt_token_ids"], choice["token_ids"])

    def names(self) -> dict[str, str | None]:
        return {each["id"]: each["parent"] for each in self.http.get("/v1/models").json()["data"]}


@pytest.fixture(scope="module")
def served(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("run-time")
    base = build_model(folder / "base", "llama", seed=3)
    oracles = {"": GreedyOracle(base)}
    for seed, rank in ((1, 2), (2, 6)):
        name = f"lora-{rank}"
        adapter = write_adapter(folder / "loras" / name, base, rank=rank, seed=seed)
        oracles[name] = GreedyOracle(merged(folder / f"merged-{rank}", base, adapter))
    write_adapter(folder / "loras" / "wide", base, rank=9)
    write_adapter(folder / "outside", base)
    places = {"count": 1, "rank": 8}
    content = {
        "models": [{"name": "base", "path": "base", "max_seqs": 8, "adapter_places": places}],
        "cluster": {"nodes": [{"name": "here", "gpu": "cpu", "cores": 1}]},
        "policy": {"kv_gb": 0.1},
        "server": {
            "admin_key": "admin-key-Qq5",
            "adapter_folders": ["loras"],
            "store": {"directory": "kept"},
        },
    }
    file = folder / "muxcluster.yaml"
    file.write_text(yaml.safe_dump(content))
    server = start_server("serve", str(file), "--port", "0")
    with httpx.Client(base_url=server.url(), headers=ADMIN, timeout=300) as http:
        yield Served(server, http, folder, base, oracles)
    assert server.stop() == 0


def test_two_adapters_take_turns_at_one_place_and_go(served: Served) -> None:
    for name in ("lora-2", "lora-6"):
        loaded = served.load(name, name)
        assert loaded.status_code == 200, loaded.text
        assert served.names()[name] == "base"
    models = ["base", "lora-2", "lora-6"] * 3
    with ThreadPoolExecutor(len(models)) as threads:
        for done in [threads.submit(served.check, m, "" if m == "base" else m) for m in models]:
            done.result()
    assert served.unload("lora-2").status_code == 200
    assert served.names() == {"base": None, "lora-6": "base"}
    body = {"model": "lora-2", "prompt": "x"}
    assert served.http.post("/v1/completions", json=body).status_code == 404
    assert served.unload("lora-2").status_code == 404
    served.check("lora-6", "lora-6")


def test_refusals(served: Served) -> None:
    wide = served.load("wide", "wide")
    assert wide.status_code == 400
    assert "lora_A.weight has rank 9" in wide.json()["error"]["message"]
    assert served.load("out", str(served.folder / "outside")).status_code == 403
    assert served.load("none", "nothing-here").status_code == 400
    assert served.load("base", "lora-2").status_code == 400
    assert served.load("x", "lora-2", base_model_name="other").status_code == 404
    assert "base" in served.unload("base").json()["error"]["message"]
    assert set(served.names()) <= {"base", "lora-6"}


def test_a_name_gets_other_numbers_in_place(served: Served) -> None:
    assert served.load("one", "lora-2").status_code == 200
    served.check("one", "lora-2")
    assert served.load("one", "lora-6").status_code == 400
    assert served.load("one", "lora-6", load_inplace=True).status_code == 200
    served.check("one", "lora-6")
    assert served.unload("one").status_code == 200


def test_a_killed_unit_has_it_again(served: Served) -> None:
    assert served.load("kept", "lora-6").status_code == 200
    served.check("kept", "lora-6")
    units = {
        pid
        for pid in served.server.processes()
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::UnitHost")
    }
    assert len(units) == 1
    for pid in units:
        os.kill(pid, signal.SIGKILL)
    served.check("kept", "lora-6")  # it waits for the unit that comes
    assert served.names()["kept"] == "base"


def test_responses_of_an_adapter_are_kept_and_gone_on_with(served: Served) -> None:
    """By the actor on the head; the file is in a folder of the server's user alone."""
    assert served.load("talks", "lora-2").status_code == 200

    def ask(**fields: object) -> httpx.Response:
        body = {"model": "talks", "max_output_tokens": 4, "input": PROMPT, **fields}
        return served.http.post("/v1/responses", json=body)

    first = ask().json()
    assert (first["store"], first["model"]) == (True, "talks")
    assert served.http.get(f"/v1/responses/{first['id']}").json() == first
    second = ask(previous_response_id=first["id"], background=True).json()
    assert second["status"] == "in_progress"
    while (found := served.http.get(f"/v1/responses/{second['id']}").json()) == second:
        time.sleep(0.05)
    assert (found["status"], found["previous_response_id"]) == ("incomplete", first["id"])
    assert found["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    assert served.http.delete(f"/v1/responses/{first['id']}").status_code == 200
    assert served.http.get(f"/v1/responses/{first['id']}").status_code == 404
    file = served.folder / "kept" / "responses.sqlite"
    assert file.stat().st_mode & 0o077 == file.parent.stat().st_mode & 0o077 == 0
    assert served.unload("talks").status_code == 200
