"""`muxcluster serve MODEL MODEL` without a file: a directory, and a model of a stand-in hub."""

from pathlib import Path

import pytest
from openai import OpenAI

from muxcluster.demo.models import build_model
from tests.cluster.conftest import MUXCLUSTER, MarkedProcess
from tests.hub import Repository, running_hub


@pytest.mark.slow
def test_a_directory_and_an_id_are_served(tmp_path: Path) -> None:
    own = build_model(tmp_path / "own", "qwen3", seed=1)
    away = build_model(tmp_path / "away", "llama", seed=2)
    with running_hub({"acme/tiny": Repository(away)}) as hub:
        environment = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}
        options = ("--port", "0", "--max-model-len", "256", "--api-key", "secret")
        command = (*MUXCLUSTER, "serve", str(own), "acme/tiny", *options)
        server = MarkedProcess(command, environment)
        try:
            server.wait_for(r"\nready after")
            url = server.wait_for(r"curl (http://\S+?)/v1/")[1]
            client = OpenAI(base_url=f"{url}/v1", api_key="secret", timeout=600)
            served = {model.id: model.model_dump() for model in client.models.list()}
            assert {name: each["max_model_len"] for name, each in served.items()} == {
                "own": 256,
                "tiny": 256,
            }
            for name in served:
                answer = client.completions.create(model=name, prompt="Hello", max_tokens=4)
                assert answer.usage is not None and answer.usage.completion_tokens == 4
        finally:
            server.stop()
    server.join()
    assert "model.safetensors" in hub.downloads()
    for line in ("acme/tiny: from the Hugging Face hub", "  local-0.1: loading"):
        assert line in server.output
    assert (tmp_path / "hub" / "models--acme--tiny").is_dir()
