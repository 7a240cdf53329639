"""`muxcluster serve MODEL…`: names, options, hardware and refusals, before anything starts."""

import subprocess
import sys
from pathlib import Path

import pytest

from muxcluster.cli.found.gpus import SeenGpus
from muxcluster.cli.server import models as server_models
from muxcluster.cli.server.models import NamedModels, config_of_models
from muxcluster.config.hub import Fetching
from muxcluster.core.errors import ConfigError
from tests.cli.calls import call
from tests.conftest import ROOT
from tests.core.test_adapter_files import write as write_adapter
from tests.models import tiny_config


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three model directories in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("chat", "code", "other/chat"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text(tiny_config())


def test_models_are_served_by_the_last_part_of_their_paths(tmp_path: Path) -> None:
    config = config_of_models(NamedModels(["./chat/", str(tmp_path / "code")]), Fetching())
    assert [(model.name, model.path, model.max_model_len) for model in config.models] == [
        ("chat", tmp_path / "chat", 512),
        ("code", tmp_path / "code", 512),
    ]
    assert config.batch_directory == tmp_path / "muxcluster-batches"


def test_names_and_lengths_can_be_given() -> None:
    named = NamedModels(["chat", "other/chat"], names=["a", "org/b"], max_model_len=256)
    config = config_of_models(named, Fetching())
    assert [(model.name, model.max_model_len) for model in config.models] == [
        ("a", 256),
        ("org/b", 256),
    ]


@pytest.mark.parametrize(
    ("seen", "has_cuda", "gpu", "told"),
    [
        (SeenGpus("H100", 2), True, "H100", ""),
        (SeenGpus("H100", 2), False, "cpu", "2 x H100 are not used: this torch finds no CUDA"),
        (SeenGpus(note="unknown GPU 'X'"), True, "cpu", "unknown GPU 'X'"),
        (SeenGpus(), False, "cpu", ""),
    ],
)
def test_gpus_are_used_where_they_can_be(
    monkeypatch: pytest.MonkeyPatch, seen: SeenGpus, has_cuda: bool, gpu: str, told: str
) -> None:
    monkeypatch.setattr(server_models, "seen_gpus", lambda: seen)
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_cuda)
    lines: list[str] = []
    config = config_of_models(NamedModels(["chat"]), Fetching(tell=lines.append))
    (node,) = config.cluster.listed()
    assert node.gpu == gpu and node.gpus == (seen.count if gpu != "cpu" else 1)
    assert len(lines) == bool(told) and told in "".join(lines)


def test_adapters_of_the_only_model(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_adapter(tmp_path / name)
    named = NamedModels(["chat"], adapters=["sql=one", f"b=c={tmp_path}/two"])
    with pytest.raises(ConfigError, match="no such directory"):
        config_of_models(named, Fetching())
    named = NamedModels(["chat"], adapters=["sql=one", f"team/b={tmp_path}/two"])
    (model,) = config_of_models(named, Fetching()).models
    assert [(each.name, each.files.directory) for each in model.adapters] == [
        ("sql", tmp_path / "one"),
        ("team/b", tmp_path / "two"),
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("chat", "other/chat"), "other/chat: would be called 'chat', as chat is"),
        (("chat", "chat"), "would be called 'chat'"),
        (("chat", "code", "--served-model-name", "x"), "1 names for 2 models"),
        (("chat", "--served-model-name", "a b"), "models[0].name"),
        (("chat", "code", "--lora-modules", "a=b"), "adapters of which of 2 models?"),
        (("chat", "--lora-modules", "adapters"), "'adapters' is not NAME=PATH"),
        (("a.yaml", "--lora-modules", "a=b"), "models[] of a.yaml"),
        (("chat", "--max-model-len", "1024"), "more than the model's longest context, 512"),
        (("chta",), "no such directory: "),
        (("chta",), "did you mean chat?"),
        (("chat/config.json",), "is no directory, but a file"),
        (("model.gguf",), "GGUF files are not served"),
        (("acme/tiny",), "acme/tiny on the Hugging Face hub: "),
        (("muxcluster.yaml", "chat"), "muxcluster.yaml is a configuration"),
        (("a.yaml", "b.yml"), "a.yaml is a configuration, so b.yml cannot stand beside it"),
        (("a.yaml", "--max-model-len", "99"), "models[] of a.yaml"),
        (("a.yaml",), "a.yaml: no such file"),
        ((), "Missing argument 'MODEL"),
    ],
)
def test_what_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    (tmp_path / "model.gguf").write_text("GGUF")
    code, out, err = call(capsys, "serve", *words)
    *told, line = err.splitlines()
    assert (code, out) == (2, "")
    assert told in ([], ["acme/tiny: from the Hugging Face hub or its cache …"])
    assert line.startswith("muxcluster: ") and says in line


def test_the_command_does_not_import_torch() -> None:
    """Nor does `up`: units do, in processes of their own."""
    modules = "muxcluster.cli.server.apply, muxcluster.cli.server.serving"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=300)
