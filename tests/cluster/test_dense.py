"""A model that is not on the attention interface, on a real server beside two that are."""

import json
import random
import time
import urllib.request
from pathlib import Path

import pytest
import yaml
from openai import OpenAI

from muxcluster.demo.models import build_model
from muxcluster.http.calls.choice import CONTEXT_TOKENS
from muxcluster.text.detokenizer import Detokenizer
from muxcluster.text.tokenizer import Tokenizer
from tests.cluster.conftest import STOP_TIMEOUT_S, ServerProcess, held
from tests.engine.dense.units import generated

FAMILIES = ("bloom", "llama", "qwen2")
NUM_TOKENS = 16


def _ask(client: OpenAI, model: str, prompt: list[int], num_tokens: int, most: int = 10**6) -> str:
    """The text of a stream, or of its first `most` pieces."""
    stream = client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=num_tokens,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    text = ""
    with stream:
        for number, chunk in enumerate(stream, 1):
            text += chunk.choices[0].text
            if number == most:
                break
    return text


@pytest.mark.slow
def test_streams_finish_as_the_library_says_and_cancelled_ones_leave_nothing(
    tmp_path: Path,
) -> None:
    directories = {name: build_model(tmp_path / name, name, seed=3) for name in FAMILIES}
    models = [{"name": name, "path": name, "max_model_len": 512} for name in FAMILIES]
    config = tmp_path / "muxcluster.yaml"
    config.write_text(yaml.safe_dump({"models": models, "policy": {"kv_gb": 0.05}}))
    rng = random.Random(5)
    server = ServerProcess("serve", str(config), "--port", "0")
    try:
        url = server.url()
        with OpenAI(base_url=f"{url}/v1", api_key="k") as client:
            for name, directory in directories.items():
                tokenizer = Tokenizer.load(directory)
                for _ in range(3):
                    prompt = [rng.randrange(10, 500) for _ in range(rng.randint(3, 40))]
                    assert _ask(client, name, prompt, 400, most=3)
                    text = _ask(client, name, prompt, NUM_TOKENS)
                    # random models answer with bytes that make no whole character
                    decoder = Detokenizer(tokenizer, context=prompt[-CONTEXT_TOKENS:])
                    expected = decoder.push(generated(directory, prompt, NUM_TOKENS))
                    assert text == expected + decoder.finish(), name
        with urllib.request.urlopen(f"{url}/status", timeout=STOP_TIMEOUT_S) as answer:
            (unit,) = json.load(answer)["units"]
        backends = {model["name"]: model["backend"] for model in unit["models"]}
        assert backends == {"bloom": "dense", "llama": "paged", "qwen2": "paged"}
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while held(url):
            assert time.monotonic() < deadline, "blocks are held by nobody"
            time.sleep(0.1)
        living = server.processes()
        assert server.stop() == 0
        server.assert_gone(living)
    finally:
        if server.process.poll() is None:
            server.stop()
