"""Jobs of two tiny models for `muxcluster batch run`, as files and as processes."""

import json
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import yaml

from muxcluster.demo.models import build_model

FAMILIES = {"llama-a": "llama", "qwen-b": "qwen3"}
OUTPUT_TOKENS = 6
ALWAYS_SHARED: Mapping[str, object] = MappingProxyType({"sharing": "always", "num_threads": 1})
START_TIMEOUT_S = 120.0


def build_models(root: Path) -> dict[str, Path]:
    """Both models, by name."""
    return {
        name: build_model(root / name, family, seed=seed)
        for seed, (name, family) in enumerate(FAMILIES.items())
    }


def write_config(
    file: Path, models: Mapping[str, Path], policy: Mapping[str, object] = ALWAYS_SHARED
) -> str:
    """A configuration that serves them."""
    listed = [
        {"name": name, "path": str(path), "prompt_tokens": 20, "output_tokens": OUTPUT_TOKENS}
        for name, path in models.items()
    ]
    content = {"models": listed, "policy": dict(policy)}
    file.write_text(yaml.safe_dump(content))
    return str(file)


def prompts(count: int, seed: int = 0) -> list[tuple[str, list[int]]]:
    """(model, token ids): half of them begin with the same twenty tokens."""
    rng = random.Random(seed)
    shared = [rng.randrange(10, 500) for _ in range(20)]
    return [
        (
            rng.choice(list(FAMILIES)),
            shared * (i % 2) + [rng.randrange(10, 500) for _ in range(rng.randint(1, 12))],
        )
        for i in range(count)
    ]


def write_job(
    path: Path, asked: Sequence[tuple[str, list[int]]], max_tokens: int = OUTPUT_TOKENS
) -> str:
    """The job's file; custom ids are r-0, r-1, ..."""
    fixed = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    with path.open("w") as file:
        for number, (model, prompt) in enumerate(asked):
            body = {"model": model, "prompt": prompt, **fixed}
            entry = {"custom_id": f"r-{number}", "url": "/v1/completions", "body": body}
            file.write(json.dumps({"method": "POST", **entry}) + "\n")
    return str(path)


def texts(path: Path) -> dict[str, str]:
    """Answers by custom_id, each of which may be there once."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        assert entry["custom_id"] not in found
        assert entry["error"] is None
        assert entry["response"]["status_code"] == 200
        found[entry["custom_id"]] = entry["response"]["body"]["choices"][0]["text"]
    return found


def started(*arguments: str) -> "subprocess.Popen[str]":
    """`muxcluster batch run` in a process of its own."""
    code = "from muxcluster.cli.main import main; main()"
    command = (sys.executable, "-c", code, "batch", "run", *arguments)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def num_ended(state: Path) -> int:
    """Lines that the folder says have ended; 0 before it says anything."""
    database = state / "batches.sqlite"
    if not database.exists():
        return 0
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        rows = connection.execute("SELECT num_completed + num_failed FROM batches").fetchall()
    except sqlite3.OperationalError:
        # its tables are not made yet
        return 0
    finally:
        connection.close()
    return int(rows[0][0]) if rows else 0


def wait_until_ended(
    process: "subprocess.Popen[str]", state: Path, count: int, timeout_s: float = START_TIMEOUT_S
) -> bool:
    """Waits until so many lines have ended; False where the process did so first."""
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and num_ended(state) < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return process.poll() is None
