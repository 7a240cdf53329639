"""`muxcluster init`: a file that loads, from folders, the cache, ids, and other servers' files."""

import json
from pathlib import Path
from typing import Any

import pytest

from muxcluster.cli import init as init_module
from muxcluster.cli.found.commands import model_of
from muxcluster.cli.found.gpus import SeenGpus, seen_gpus
from muxcluster.cli.found.models import Model, Unserved
from muxcluster.config.load import Config, load_config
from tests.cli.calls import call, refusal
from tests.core.test_adapter_files import write as write_adapter
from tests.models import tiny_config

LOOKUP = {"method": "ngram", "num_speculative_tokens": 5}


@pytest.fixture(autouse=True)
def _nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory, an empty cache, no GPU."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setattr(init_module, "seen_gpus", lambda: SeenGpus())


def make(folder: Path, weights: str = "model.safetensors", **more: Any) -> Path:
    """A model directory, as far as `init` looks at it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(tiny_config(**more))
    (folder / weights).write_text("weights")
    return folder


def written(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Config, str, str]:
    """The configuration that `init` writes, its text, and what is told on standard error."""
    code, out, err = call(capsys, "init", *words)
    assert code == 0, err
    assert "next: muxcluster place muxcluster.yaml; muxcluster serve muxcluster.yaml" in out
    file = Path("muxcluster.yaml")
    return load_config(file), file.read_text(), err


def test_models_below_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    models = tmp_path / "models"
    chat = make(models / "acme" / "chat")
    other = make(models / "other" / "chat")
    make(models / "quantised", quantization_config={"bits": 4})
    make(models / "encoder", architectures=["BertModel"])
    make(models / "old", weights="pytorch_model.bin")
    (models / "tiny.Q4_K_M.gguf").write_text("GGUF")
    make(models / ".hidden" / "chat")
    config, text, told = written(capsys, str(models))
    assert [(model.name, model.path) for model in config.models] == [
        ("chat", chat),
        ("other/chat", other),
    ]
    assert "# 0.00 B parameters, 0.0 GiB in 16 bits, context 512" in text
    reasons = {
        "tiny.Q4_K_M.gguf": "GGUF files are not served",
        "quantised": "weights quantised by None cannot be served"
        " (known: awq, compressed-tensors, fp8, gptq, mxfp4)",
        "encoder": "BertModel generates no text",
        "old": "it has no weights in safetensors",
    }
    for name, reason in reasons.items():
        line = f"{models / name}: {reason}"
        assert f"not served: {line}" in told and f"#   {line}" in text
    assert len(told.splitlines()) == len(reasons)


def test_the_working_directory_and_the_cache(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    here = make(tmp_path / "work" / "mine")
    commit = "0123456789" * 4
    cached = tmp_path / "home" / "hub" / "models--acme--tiny-chat"
    make(cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    code, out, err = call(capsys, "init", "--out", "-")
    assert (code, err) == (0, "")
    assert f'    path: "{here}"' in out and '    path: "acme/tiny-chat"' in out
    assert not Path("muxcluster.yaml").exists()


def test_ids_and_gpus(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init_module, "seen_gpus", lambda: SeenGpus("A100-80GB", 4))
    code, out, _ = call(capsys, "init", "Qwen/Qwen3-0.6B", "acme/chat@v2", "-o", "-")
    assert code == 0
    assert '  - name: "Qwen3-0.6B"\n    path: "Qwen/Qwen3-0.6B"\n' in out
    assert '  - name: chat\n    path: "acme/chat@v2"\n' in out
    assert 'nodes: [{name: local, gpus: 4, gpu: "A100-80GB"}]' in out


LLAMA_SWAP = """
macros:
  vllm: vllm serve --port ${PORT}
healthCheckTimeout: 60
models:
  big:
    cmd: |
      ${vllm} DIRECTORY
      --max-model-len 256 --tensor-parallel-size 2
  gguf:
    cmd: llama-server --port ${PORT} -m /models/x.gguf
  docker:
    cmd: docker run --gpus all vllm/vllm-openai:v0.9 --model DIRECTORY --dtype half
  other:
    cmd: python serve.py
"""


def test_a_llama_swap_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = make(tmp_path / "model")
    (tmp_path / "swap.yaml").write_text(LLAMA_SWAP.replace("DIRECTORY", str(model)))
    config, _, told = written(capsys, str(tmp_path / "swap.yaml"))
    big, docker = config.models
    assert (big.name, big.path, big.max_model_len) == ("big", model, 256)
    assert (docker.name, docker.section.dtype) == ("docker", "float16")
    gguf, other = told.splitlines()
    assert gguf.startswith("not served: gguf: GGUF files are not served")
    assert other == "not served: other: it is started by python, of which nothing is known"


def test_a_script_of_vllm_commands(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = make(tmp_path / "model")
    adapter = write_adapter(tmp_path / "sql")
    (tmp_path / "start.sh").write_text(
        "#!/bin/sh\nset -e  # vllm serve in two lines\n"
        f"CUDA_VISIBLE_DEVICES=0 vllm serve {model} \\\n"
        "    --served-model-name chat --max-num-seqs=32 --enable-expert-parallel "
        "--enable-auto-tool-choice --tool-call-parser llama3_json &\n"
        f"python -m vllm.entrypoints.openai.api_server --model {model} --seed 7\n"
        f"vllm serve {model} --served-model-name sql --enable-lora --max-loras 2 "
        f"--lora-modules sql-v2={adapter} chatty=org/lora\n"
    )
    config, text, told = written(capsys, str(tmp_path / "start.sh"))
    chat, other, sql = config.models
    assert (chat.name, chat.section.max_seqs) == ("chat", 32)
    assert chat.section.tool_format == "llama3"
    assert "  # without --enable-expert-parallel\n" in text
    assert (other.name, other.section.seed) == ("model", 7)
    assert "  # without --lora-modules chatty=org/lora\n" in text
    assert [(each.name, each.path) for each in sql.section.adapters] == [("sql-v2", str(adapter))]
    assert told == ""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("vllm serve a/b", Model("b", "a/b")),
        ("/opt/bin/vllm serve a/b --revision v2 -tp 2", Model("b", "a/b@v2")),
        ("vllm serve --trust-remote-code a/b", Model("b", "a/b", "", {"trust_remote_code": True})),
        (
            "vllm serve a/b --reasoning-parser qwen3 --tool-call-parser pythonic",
            Model("b", "a/b", "without --tool-call-parser pythonic", {"reasoning": "think"}),
        ),
        ("vllm serve a/b --max-model-len 32k", Model("b", "a/b", "", {"max_model_len": 32000})),
        (
            f"vllm serve a/b --speculative-config '{json.dumps(LOOKUP)}'",
            Model("b", "a/b", "", {"speculation": LOOKUP}),
        ),
        (
            """vllm serve a/b --speculative-config '{"method":"eagle"}'""",
            Model("b", "a/b", """without --speculative-config {"method":"eagle"}"""),
        ),
        ("vllm serve a/b --max-model-len 1K", Model("b", "a/b", "", {"max_model_len": 1024})),
        ("vllm serve a/b --max_model_len auto", Model("b", "a/b", "without --max-model-len auto")),
        ("vllm serve --port 1 a/b -q awq", Model("b", "a/b")),
        ("vllm serve a/b --quantization fp8", Model("b", "a/b", "", {"quantize": "fp8"})),
        ("vllm serve a/b --kv-cache-dtype fp8", Model("b", "a/b", "", {"kv_dtype": "fp8_e4m3"})),
        (
            "vllm serve a/b --kv-cache-dtype fp8_e5m2",
            Model("b", "a/b", "without --kv-cache-dtype fp8_e5m2"),
        ),
        (
            "vllm serve a/b -q hqq",
            Unserved("a/b", "--quantization hqq: such weights are not served"),
        ),
        ("vllm serve", None),
        ("echo vllm", None),
        ("vllm serve 'a/b", None),
        ("# vllm serve a/b", None),
    ],
)
def test_commands(line: str, expected: Model | Unserved | None) -> None:
    assert model_of(line) == expected


def test_what_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "no model was found" in refusal(capsys, "init")
    assert "neither a file, nor a folder, nor" in refusal(capsys, "init", "nothing")
    (tmp_path / "x.gguf").write_text("GGUF")
    (tmp_path / "a.yaml").write_text("models: [{name: a, path: b}]")
    (tmp_path / "b.sh").write_text("echo\n")
    assert "nothing that can be served" in refusal(capsys, "init", str(tmp_path / "x.gguf"))
    assert "no llama-swap file" in refusal(capsys, "init", str(tmp_path / "a.yaml"))
    assert "no line of it" in refusal(capsys, "init", str(tmp_path / "b.sh"))
    assert "no model is in this folder" in refusal(capsys, "init", str(tmp_path / "work"))
    Path("muxcluster.yaml").write_text("mine")
    assert "is there already: --force replaces it" in refusal(capsys, "init", "a/b")
    assert call(capsys, "init", "a/b", "--force")[0] == 0
    assert "a/b" in Path("muxcluster.yaml").read_text()


SMI = """#!/bin/sh
echo '0, GPU-aa, NVIDIA A100-SXM4-80GB'
echo '1, GPU-bb, NVIDIA A100-SXM4-80GB'
echo '2, GPU-cc, {third}'
"""


@pytest.mark.parametrize(
    ("third", "visible", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", None, SeenGpus("A100-80GB", 3)),
        ("NVIDIA A100-SXM4-80GB", "0,GPU-c", SeenGpus("A100-80GB", 2)),
        ("NVIDIA A100-SXM4-80GB", "", SeenGpus()),
        ("NVIDIA L4", "0,1", SeenGpus("A100-80GB", 2)),
        (
            "NVIDIA L4",
            None,
            SeenGpus(
                note="GPUs of several kinds (NVIDIA A100-SXM4-80GB, NVIDIA L4) are not one node"
            ),
        ),
    ],
)
def test_the_drivers_list(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    third: str,
    visible: str | None,
    expected: SeenGpus,
) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(SMI.replace("{third}", third))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert seen_gpus({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == expected


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert seen_gpus({}) == SeenGpus()
