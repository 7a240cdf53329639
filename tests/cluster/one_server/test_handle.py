"""Python users: Serve handles in the server's own Ray, streamed and whole."""

import json
import os
import subprocess
import sys
import urllib.request
from typing import Any

from openai import OpenAI

# In a process of its own: Ray's driver would live on in pytest's.
DRIVER = """
import json, sys
import ray
from ray import serve

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
app = serve.get_app_handle("muxcluster").options(multiplexed_model_id="qwen-b")
fields = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
chat = [{"role": "user", "content": "Hi"}]
stream = app.options(stream=True)
out = {
    "items": list(stream.generate.remote("Once upon", **fields)),
    "whole": app.complete.remote("Once upon", **fields, n=1).result(timeout_s=60),
    "chat": app.complete.remote(chat, **fields).result(timeout_s=60),
    "tokens": app.complete.remote([5, 6, 7], **fields).result(timeout_s=60),
}
try:
    app.complete.remote("x", temperature=-1).result(timeout_s=60)
except Exception as error:
    out["error"] = str(error)
try:
    app.options(multiplexed_model_id="none").complete.remote("x").result(timeout_s=60)
except Exception as error:
    out["unknown"] = str(error)
print("RESULT" + json.dumps(out))
"""


def _answers(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/status", timeout=10) as answer:
        address = json.load(answer)["ray_address"]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, address],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "RAY_AUTH_MODE": "token"},  # Ray's default for a local cluster
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout.partition("RESULT")[2])
    return answers


def test_handles_give_what_http_gives(url: str, client: OpenAI) -> None:
    answers = _answers(url)
    over_http = client.completions.create(
        model="qwen-b",
        prompt="Once upon",
        max_tokens=24,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    items = answers["items"]
    assert "".join(item["text"] for item in items) == over_http.choices[0].text
    assert sum(len(item["tokens"]) for item in items) == 24
    assert items[-1]["finish_reason"] == "length" and items[-1]["num_output_tokens"] == 24
    assert [item["finish_reason"] for item in items[:-1]] == [None] * (len(items) - 1)
    (whole,) = answers["whole"]
    assert whole["text"] == over_http.choices[0].text
    assert whole["tokens"] == [token for item in items for token in item["tokens"]]
    assert len(answers["chat"][0]["tokens"]) == len(answers["tokens"][0]["tokens"]) == 24
    assert "temperature" in answers["error"]
    assert "'none' is not served here" in answers["unknown"]
