"""GuideLLM: a load of text completions and one of chats."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import MODEL, TOKENIZER, URL, run


def load(request_type):
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).with_name("guidellm")), "benchmark", "run"]
        command += ["--target", URL, "--model", MODEL, "--processor", TOKENIZER]
        command += ["--request-type", request_type, "--profile", "constant", "--rate", "4"]
        command += ["--max-requests", "12", "--data", "prompt_tokens=32,output_tokens=8"]
        command += ["--output-path", str(Path(folder) / "found.json")]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        sys.stderr.write(done.stdout[-3000:] + done.stderr[-3000:])
        assert done.returncode == 0, (done.stderr.strip().splitlines() or ["it failed"])[-1]
        found = json.loads((Path(folder) / "found.json").read_text())
    totals = found["benchmarks"][0]["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (12, 0), totals


def text_completions():
    load("text_completions")


def chat_completions():
    load("chat_completions")


run(text_completions, chat_completions)
