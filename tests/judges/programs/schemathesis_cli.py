"""Schemathesis on our OpenAPI document: no request that it makes of it gets a server error."""

import re
import subprocess
import sys
from pathlib import Path

from checks import URL, run

ROUTES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/models",
    "/tokenize",
    "/detokenize",
    "/v1/files",
    "/v1/batches",
)


def program():
    return str(Path(sys.executable).with_name("schemathesis"))


def fuzz(path):
    command = [program(), "run", f"{URL}/openapi.json", "--checks", "not_a_server_error"]
    command += ["--include-path-regex", f"^{re.escape(path)}", "--max-examples", "25"]
    command += ["--phases", "examples,coverage,fuzzing", "--request-timeout", "60"]
    done = subprocess.run(command, capture_output=True, text=True)
    sys.stderr.write(done.stdout[-4000:] + done.stderr[-2000:])
    if done.returncode:
        found = re.findall(r"^.*(?:Server error|5\d\d|Error:).*$", done.stdout + done.stderr, re.M)
        raise AssertionError(" ".join(found[:2]) or f"exit code {done.returncode}")


def check_of(path):
    def check():
        fuzz(path)

    check.__name__ = path
    return check


run(*map(check_of, ROUTES))
