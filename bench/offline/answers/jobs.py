"""Files of batch jobs for a tiny model on a CPU, and their runs by `batch run`."""

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench.traces.batchmix import Kind, mixed_job
from muxcluster.cli.main import run
from muxcluster.offline.prefix.prompts import flat_prompts
from muxcluster.offline.prefix.tree import build_tree

MODEL = "m"
BLOCK_TOKENS = 16  # Of heads half as wide as those that `policy.block_tokens` is for
_FIRST_ID = 10  # Of the ids that prompts are made of: those before stand for no text


@dataclass(frozen=True, slots=True)
class Machine:
    """A model directory and what of this machine it may use."""

    model: Path
    kv_tokens: int  # that its KV pool holds
    bytes_of_token: int  # of KV
    most_tokens: int  # of a request
    num_tokens: int  # of a job of the engine, at most
    max_seqs: int = 64

    def config(self, folder: Path) -> Path:
        """Its configuration, written into `folder`."""
        path = folder / "muxcluster.yaml"
        section: dict[str, Any] = {
            "name": MODEL,
            "path": str(self.model),
            "max_seqs": self.max_seqs,
        }
        section["max_model_len"] = self.most_tokens
        policy = {
            "scheduler": "mixed",
            "partition": "none",
            "token_budget": self.num_tokens,
            "block_tokens": BLOCK_TOKENS // 2,
            "kv_gb": self.kv_tokens * self.bytes_of_token / 2**30,
            "num_threads": 1,
        }
        path.write_text(yaml.safe_dump({"models": [section], "policy": policy}))
        return path


@dataclass(frozen=True, slots=True)
class Answered:
    """A job that ran to its end."""

    order: str
    texts: Mapping[str, str]  # answers by custom_id
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    running_s: float  # from its first request to its last answer, without loading and planning

    def row(self) -> dict[str, Any]:
        """For the record."""
        return {
            "order": self.order,
            "prompt_tokens": self.prompt_tokens,
            "saving": round(self.cached_tokens / self.prompt_tokens, 4),
            "output_tokens": self.output_tokens,
            "running_s": round(self.running_s, 3),
        }


def write_job(path: Path, prompts: Sequence[str | list[int]], outputs: Sequence[int]) -> None:
    """A line for each prompt, answered greedily with exactly so many tokens."""
    with path.open("w", encoding="utf-8") as file:
        for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            fixed = {"max_tokens": output, "temperature": 0, "ignore_eos": True}
            body = {"model": MODEL, "prompt": prompt, **fixed}
            entry = {"custom_id": str(number), "url": "/v1/completions", "body": body}
            file.write(json.dumps({"method": "POST", **entry}) + "\n")


def shaped_job(path: Path, kind: Kind, num_requests: int, vocab_size: int, seed: int) -> float:
    """Writes random prompts that share prefixes, in random order; what of them the optimum saves,
    in whole blocks of `BLOCK_TOKENS`."""
    job = mixed_job([kind], num_requests, np.random.default_rng(seed))
    ids = job.ids % (vocab_size - _FIRST_ID) + _FIRST_ID
    bounds = job.offsets.tolist()
    prompts = [ids[low:high].tolist() for low, high in zip(bounds, bounds[1:], strict=False)]
    write_job(path, prompts, job.output_tokens.tolist())
    tree = build_tree(flat_prompts(ids, job.offsets), BLOCK_TOKENS, own_tokens=1)
    return tree.saved_tokens / tree.prompt_tokens


def few_shot_job(
    path: Path, rows: Path, num_requests: int, sets: tuple[int, int], output: int, seed: int
) -> None:
    """Writes questions of GSM8K (`rows`), each after one of `sets[0]` sets of `sets[1]` examples.

    Raises ValueError where there are too few rows.
    """
    num_sets, num_shots = sets
    lines = rows.read_text(encoding="utf-8").splitlines()
    read = [json.loads(line) for line in lines[: num_sets * num_shots + num_requests]]
    if len(read) < num_sets * num_shots + num_requests:
        raise ValueError(f"{rows} has {len(read)} rows, too few for {num_requests} requests")
    shots = [f"Question: {row['question']}\nAnswer: {row['answer']}\n\n" for row in read]
    prefixes = ["".join(shots[i * num_shots : (i + 1) * num_shots]) for i in range(num_sets)]
    chosen = np.random.default_rng(seed).integers(0, num_sets, num_requests).tolist()
    asked = read[num_sets * num_shots :]
    prompts: list[str | list[int]] = [
        f"{prefixes[number]}Question: {row['question']}\nAnswer:"
        for number, row in zip(chosen, asked, strict=True)
    ]
    write_job(path, prompts, [output] * num_requests)


def answer(machine: Machine, job: Path, order: str) -> Answered:
    """The job's file answered in that order by `muxcluster batch run`, in this process.

    Raises RuntimeError where it fails, or a line got no answer.
    """
    output, config = job.with_suffix(".out"), machine.config(job.parent)
    command = ["batch", "run", job, "-o", output, "--config", config, "--order", order, "--json"]
    said = io.StringIO()
    with redirect_stdout(said):
        code = run([str(part) for part in command])
    ran = json.loads(said.getvalue()) if code == 0 else {"failed": None}
    if ran["failed"] != 0:
        raise RuntimeError(f"exit code {code}, lines without an answer: {ran['failed']}")
    lines = map(json.loads, output.read_text(encoding="utf-8").splitlines())
    texts = {line["custom_id"]: _text(line) for line in lines}
    output.unlink()
    (chosen,) = ran["orders"].values()
    counts = (ran[f"{kind}_tokens"] for kind in ("prompt", "cached", "output"))
    return Answered(chosen, texts, *counts, ran["running_s"])


def _text(line: Mapping[str, Any]) -> str:
    text: str = line["response"]["body"]["choices"][0]["text"]
    return text
