"""Models by Hugging Face id: what is fetched, kept, sent and refused, against a stand-in hub."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muxcluster.config.hub import HubId
from tests.conftest import ROOT
from tests.hub import TOKEN, Hub, Repository, running_hub
from tests.models import as_embedder, tiny_config

FILES = {
    "config.json": tiny_config(),
    "generation_config.json": "{}",
    "tokenizer.json": "[]",
    "model.safetensors": "weights",
    "pytorch_model.bin": "weights",
    "README.md": "# Tiny",
    "consolidated.safetensors": "weights",
    "onnx/model.safetensors": "weights",
}
# The environment is read when huggingface_hub is imported: one process for each.
SCRIPT = """
import json, sys
from pathlib import Path
from muxcluster.config.hub import Fetching, Wanted
from muxcluster.config.load import load_config
from muxcluster.core.errors import ConfigError

results = []
for path, wanted, more in json.loads(sys.stdin.read()):
    told = []
    file = Path("muxcluster.yaml")
    file.write_text(json.dumps({"models": [{"name": "m", "path": path, **more}]}))
    try:
        config = load_config(file, Fetching(Wanted[wanted], told.append))
        results.append(["fetched", str(config.models[0].path), told])
    except ConfigError as error:
        results.append(["refused", str(error), told])
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    for name, text in FILES.items():
        for repository in ("whole", "bare", "embedder"):
            file = folder / repository / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    for name in ("model.safetensors", "onnx/model.safetensors"):
        (folder / "bare" / name).unlink()
    as_embedder(folder / "embedder")
    (folder / "gguf").mkdir()
    (folder / "gguf" / "tiny.gguf").write_text("weights")
    whole = folder / "whole"
    repositories = {
        "acme/tiny": Repository(whole, revisions=("main", "v1.0", "refs/pr/1")),
        "acme/private": Repository(whole, needs_token=True),
        "acme/gated": Repository(whole, is_gated=True),
        "acme/bare": Repository(folder / "bare"),
        "acme/tiny-gguf": Repository(folder / "gguf"),
        "acme/embedder": Repository(folder / "embedder"),
    }
    with running_hub(repositories) as running:
        yield running


@pytest.fixture(autouse=True)
def _forgotten(hub: Hub) -> None:
    hub.calls.clear()


def ask(folder: Path, url: str, *calls: tuple[Any, ...], **environment: str) -> list[list[Any]]:
    """[fetched or refused, directory or message, lines told] of each (path, wanted[, keys])."""
    asked = [[path, wanted, more[0] if more else {}] for path, wanted, *more in calls]
    variables = {"HF_HOME": str(folder / "home"), "HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0"}
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(ROOT), **variables, **environment},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no bar outside of a terminal, no warning
    found: list[list[Any]] = json.loads(done.stdout)
    return found


def files(directory: str) -> set[str]:
    return {path.name for path in Path(directory).rglob("*")}


def test_what_says_how_an_embedding_model_pools_is_fetched_to_plan(
    hub: Hub, tmp_path: Path
) -> None:
    ((how, directory, _),) = ask(tmp_path, hub.url, ("acme/embedder", "CONFIG"))
    assert how == "fetched", directory
    assert (Path(directory) / "1_Pooling" / "config.json").is_file()
    assert files(directory) == {
        *("config.json", "generation_config.json", "modules.json", "1_Pooling")
    }


def test_what_is_needed_is_fetched_and_no_more(hub: Hub, tmp_path: Path) -> None:
    (how, first, told), (_, second, _) = ask(
        tmp_path, hub.url, ("acme/tiny", "CONFIG"), ("acme/tiny@v1.0", "TEXT")
    )
    assert how == "fetched" and first.startswith(str(tmp_path / "home" / "hub"))
    assert told == ["acme/tiny: from the Hugging Face hub or its cache …"]
    assert first == second  # the same commit
    assert hub.downloads() == {"config.json", "generation_config.json", "tokenizer.json"}
    ((_, third, _),) = ask(tmp_path, hub.url, ("acme/tiny@refs/pr/1", "ALL"))
    expected = {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors"}
    assert files(third) == hub.downloads() == expected


def test_random_weights_need_none(hub: Hub, tmp_path: Path) -> None:
    ((how, directory, _),) = ask(tmp_path, hub.url, ("acme/bare", "ALL", {"load_format": "dummy"}))
    assert how == "fetched" and "tokenizer.json" in files(directory)


def test_a_cache_serves_without_the_network(hub: Hub, tmp_path: Path) -> None:
    online = ask(tmp_path, hub.url, ("acme/tiny", "CONFIG"))
    hub.calls.clear()
    same, more, other = ask(
        tmp_path,
        hub.url,
        ("acme/tiny", "CONFIG"),
        ("acme/tiny", "ALL"),
        ("acme/bare", "CONFIG"),
        HF_HUB_OFFLINE="1",
    )
    assert same == online[0] and hub.calls == []
    for refused in (more, other):
        assert refused[0] == "refused"
        assert refused[1].endswith("in the cache, and HF_HUB_OFFLINE is set")
    cached, lost = ask(
        tmp_path, "http://127.0.0.1:9", ("acme/tiny", "CONFIG"), ("acme/bare", "CONFIG")
    )
    assert cached == online[0]
    assert lost[0] == "refused" and "not in the cache, and the hub does not answer" in lost[1]


def test_a_cache_that_others_filled(hub: Hub, tmp_path: Path) -> None:
    commit = "0123456789" * 4
    repository = tmp_path / "home" / "hub" / "models--acme--old"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).write_text(FILES[name])
    by_name, by_commit = ask(
        tmp_path,
        hub.url,
        ("acme/old", "ALL"),
        (f"acme/old@{commit}", "ALL"),
        HF_HUB_OFFLINE="1",
    )
    assert by_name[:2] == by_commit[:2] == ["fetched", str(snapshot)]


def test_refusals_name_the_model_and_the_remedy(hub: Hub, tmp_path: Path) -> None:
    cases = {
        "acme/private": "no such repository, or a private one: set HF_TOKEN",
        "acme/gated": "accept its terms on its page, and set HF_TOKEN",
        "acme/nothing": "no such repository",
        "acme/tiny@v9": "no revision 'v9'",
        "acme/bare": "no weights in safetensors",
        "acme/tiny-gguf": "no config.json; GGUF files are not served",
    }
    found = ask(tmp_path, hub.url, *((name, "ALL") for name in cases))
    for (name, reason), (how, message, _) in zip(cases.items(), found, strict=True):
        assert how == "refused"
        expected = f"muxcluster.yaml:1: models[0].path: {name} on the Hugging Face hub: "
        assert message.startswith(expected) and reason in message and "\n" not in message


def test_a_token_opens_what_is_closed(hub: Hub, tmp_path: Path) -> None:
    names = ("acme/private", "acme/gated")
    found = ask(tmp_path, hub.url, *((name, "CONFIG") for name in names), HF_TOKEN=TOKEN)
    assert [how for how, *_ in found] == ["fetched", "fetched"]


def test_a_directory_comes_before_an_id(hub: Hub, tmp_path: Path) -> None:
    here = tmp_path / "acme" / "tiny"
    here.mkdir(parents=True)
    (here / "config.json").write_text(FILES["config.json"])
    own, misspelt = ask(tmp_path, hub.url, ("acme/tiny", "CONFIG"), ("acme/tinny", "CONFIG"))
    assert own == ["fetched", str(here), []]
    assert "no such directory" in misspelt[1] and "did you mean tiny?" in misspelt[1]
    assert "acme/tinny on the Hugging Face hub: no such repository" in misspelt[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubId("org/name")),
        ("Qwen/Qwen3-0.6B@main", HubId("Qwen/Qwen3-0.6B", "main")),
        ("o/n@refs/pr/1", HubId("o/n", "refs/pr/1")),
        *((text, None) for text in ("name", "/a/b", "./a/b", "../b", "a/b/c", "~/b", "a/b@", "")),
    ],
)
def test_ids(text: str, expected: HubId | None) -> None:
    assert HubId.of(text) == expected
    assert expected is None or str(expected) == text
