"""Structured outputs and tools through OpenAI's client for Node.

Run where OPENAI_NODE names a folder in which `npm install openai zod` was done.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.http.live_server import NAME, live_server
from tests.http.tool_models import tool_model

pytestmark = pytest.mark.slow

PATIENCE_S = 600
SCRIPT = Path(__file__).with_name("openai_node.mjs")
# a model that thinks would think about it first, and this one has nothing to think
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the script says."""
    folder, node = os.environ.get("OPENAI_NODE"), shutil.which("node")
    if not folder or node is None:
        pytest.skip("OpenAI's client for Node is not installed: set OPENAI_NODE")
    with live_server(tool_model(tmp_path_factory.mktemp("clients"))) as url:
        command = [node, str(SCRIPT), folder, f"{url}/v1", NAME, json.dumps(NO_THINKING)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_parse_and_stream(found: Any) -> None:
    form = found["form"]
    assert found["parsed"]
    assert form["whole"]["finish_reason"] == form["streamed"]["finish_reason"] == "stop"
    assert form["streamed"]["message"]["content"] == form["whole"]["message"]["content"]
    assert form["streamed"]["message"]["parsed"] == form["whole"]["message"]["parsed"]
    assert form["deltas"] > 5


def test_a_call(found: Any) -> None:
    calls = [found["call"][kind]["message"]["tool_calls"] for kind in ("whole", "streamed")]
    for (call,) in calls:
        assert call["function"]["name"] == "weather"
        assert call["function"]["parsed_arguments"].keys() == {"city"}
    whole, streamed = (call["function"]["arguments"] for (call,) in calls)
    assert whole == streamed


def test_a_schema_that_cannot_be_honoured(found: Any) -> None:
    assert found["refused"]["status"] == 400
    assert found["refused"]["param"].startswith("response_format")
