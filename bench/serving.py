"""Output tokens/s over HTTP against Hugging Face on the same model and requests, in one run.

The model is a Llama of 56.4 million parameters with random weights: 8 layers, hidden size 512,
8 heads and 4 KV heads of 64, intermediate size 1408, vocabulary 32,000, untied. Requests are
prompts of 32 to 128 random tokens and a fixed number of output tokens each (which is the best case
of a static batch: no row waits for a longer one). Ours is the whole server as `muxcluster serve`
starts it. Theirs is `generate` on batches of as many requests as run at once, and transformers'
continuous batching with cache and batch sized for that; neither pays for HTTP. Everything is
greedy, fp32 and on all cores. With `--openvino PYTHON`, the path of a Python that has
openvino-genai, its continuous batching runs too, in fp32 and in what it chooses by itself (bf16
where the processor has it). Claims: ours over the better of Hugging Face's, and over OpenVINO's
fp32.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import yaml

from bench.harness import ROOT, Bench, Claim, make_parser, percentiles
from muxcluster.cli.launch import free_address, prepare, serving, url_of
from muxcluster.cli.loadgen.exchange import Target, request_bytes
from muxcluster.cli.loadgen.load import Outcome, Pace, run_load
from muxcluster.cluster.embedded import HttpAddress
from muxcluster.demo.models import build_model
from muxcluster.text.tokenizer import Tokenizer

NAME = "llama-56m"
SHAPE = {
    "vocab_size": 32_000,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
CONCURRENCY = (1, 8, 32)
PROMPT_TOKENS = (32, 128)


@dataclass(frozen=True, slots=True)
class Case:
    """Requests of `num_tokens` output tokens, `concurrency` of them at a time."""

    concurrency: int
    num_tokens: int
    prompts: list[list[int]]


def cases(sizes: Sequence[int], seed: int, *, is_quick: bool) -> list[Case]:
    """The same seed gives the same requests."""
    rng = random.Random(seed)
    num_tokens = 24 if is_quick else 64
    found = []
    for size in sizes:
        num_prompts = size * (1 if is_quick else max(4, 8 // size))
        prompts = [
            [rng.randrange(3, SHAPE["vocab_size"]) for _ in range(rng.randint(*PROMPT_TOKENS))]
            for _ in range(num_prompts)
        ]
        found.append(Case(size, num_tokens, prompts))
    return found


def make_model(folder: Path) -> Path:
    """The model's directory, with a text for every token, so that a client sees each."""
    path = build_model(folder / NAME, "llama", **SHAPE)
    file = path / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    known = set(vocabulary.values())
    spare = (token for token in range(SHAPE["vocab_size"]) if token not in known)
    vocabulary.update({f"Ġspare{token}": token for token in spare})
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
    return path


def ours(path: Path, asked: Sequence[Case]) -> list[Outcome]:
    """Each case through HTTP."""
    config = path.parent / "muxcluster.yaml"
    model = {"name": NAME, "path": str(path), "max_seqs": 64, "max_model_len": 256}
    lengths = {"prompt_tokens": 80, "output_tokens": asked[0].num_tokens}
    config.write_text(yaml.safe_dump({"models": [{**model, **lengths}]}))
    prepared = prepare(config)
    prepared = replace(prepared, address=free_address(HttpAddress("127.0.0.1", 0)))
    with serving(prepared):
        url = url_of(prepared.address)
        warm_up = replace(asked[-1], num_tokens=4)
        asyncio.run(load(url, warm_up))
        return [asyncio.run(load(url, case)) for case in asked]


async def load(url: str, case: Case) -> Outcome:
    """Raises RuntimeError where any answer is not whole."""
    target = Target.of(url)
    fields = {
        "model": NAME,
        "max_tokens": case.num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    requests = [
        request_bytes(target, "/v1/completions", json.dumps({**fields, "prompt": prompt}).encode())
        for prompt in case.prompts
    ]
    outcome = await run_load(target, requests, Pace(max_concurrency=case.concurrency))
    for answer in outcome.answers:
        if not answer.is_complete or answer.num_output_tokens != case.num_tokens:
            raise RuntimeError(answer.error or f"{answer.num_output_tokens} tokens")
    return outcome


def theirs(path: Path, asked: Sequence[Case], python: str, script: str) -> dict[str, Any]:
    """Each case with another engine alone, in a process of its own: `script` beside this one."""
    task = {
        "path": str(path),
        "cases": [
            {
                "concurrency": case.concurrency,
                "num_tokens": case.num_tokens,
                "prompts": case.prompts,
            }
            for case in asked
        ],
    }
    environment = {name: os.environ[name] for name in os.environ if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        (python, str(ROOT / "bench" / script)),
        input=json.dumps(task),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=environment,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def row_of(case: Case, outcome: Outcome, other: dict[str, Any], words: Tokenizer) -> dict[str, Any]:
    """One entry of the record."""
    rate = sum(answer.num_output_tokens for answer in outcome.answers) / outcome.duration_s
    best = max(other["hf_static_tokens_per_s"], other["hf_continuous_tokens_per_s"])
    same = [
        answer.text == words.decode(tokens)
        for answer, tokens in zip(outcome.answers, other["static_tokens"], strict=True)
    ]
    both = zip(other["static_tokens"], other["continuous_tokens"], strict=True)
    return {
        "concurrency": case.concurrency,
        "requests": len(case.prompts),
        "output_tokens": case.num_tokens,
        "tokens_per_s": round(rate, 1),
        "hf_static_tokens_per_s": other["hf_static_tokens_per_s"],
        "hf_continuous_tokens_per_s": other["hf_continuous_tokens_per_s"],
        "over_hf_best": round(rate / best, 3),
        "ttft_ms": percentiles([1e3 * answer.ttft_s for answer in outcome.answers]),
        "client_cpu_share": round(outcome.client_cpu_s / outcome.duration_s, 3),
        "answers_equal_to_hf_static": sum(same),
        "hf_answers_equal_to_each_other": sum(a == b for a, b in both),
    }


def with_openvino(
    rows: list[dict[str, Any]], found: dict[str, Any], static: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The rows with OpenVINO's figures added. static: Hugging Face's cases."""
    kinds = found["cases"]
    return [
        {
            **row,
            "openvino_tokens_per_s": kinds["fp32"][number]["tokens_per_s"],
            "openvino_default_tokens_per_s": kinds["default"][number]["tokens_per_s"],
            "over_openvino": round(row["tokens_per_s"] / kinds["fp32"][number]["tokens_per_s"], 3),
            "over_openvino_default": round(
                row["tokens_per_s"] / kinds["default"][number]["tokens_per_s"], 3
            ),
        }
        | {
            "openvino_answers_equal_to_hf_static": sum(
                a == b
                for a, b in zip(
                    kinds["fp32"][number]["tokens"], static[number]["static_tokens"], strict=True
                )
            )
        }
        for number, row in enumerate(rows)
    ]


def main() -> None:
    """Measure ours, then theirs; print a line a case; publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--concurrency", type=int, nargs="+", default=CONCURRENCY)
    parser.add_argument("--openvino", metavar="PYTHON", help="a Python that has openvino-genai")
    bench = Bench(parser)
    options = bench.options
    asked = cases(options.concurrency, options.seed, is_quick=options.quick)
    with tempfile.TemporaryDirectory(prefix="bench-serving-") as folder:
        path = make_model(Path(folder))
        outcomes = ours(path, asked)
        other = theirs(path, asked, sys.executable, "serving_hf.py")
        third = options.openvino and theirs(path, asked, options.openvino, "serving_openvino.py")
        words = Tokenizer.load(path)
    triples = zip(asked, outcomes, other["cases"], strict=True)
    rows = [row_of(case, outcome, found, words) for case, outcome, found in triples]
    if third:
        rows = with_openvino(rows, third, other["cases"])
    for row in rows:
        print(json.dumps(row), flush=True)
    claims = [
        Claim(f"tokens_per_s_over_hf_best_at_{row['concurrency']}", row["over_hf_best"], "x", 1.0)
        for row in rows
    ]
    if third:
        claims += [
            Claim(
                f"tokens_per_s_over_openvino_at_{row['concurrency']}",
                row["over_openvino"],
                "x",
                1.0,
            )
            for row in rows
        ]
    samples = {
        f"latency_s at {case.concurrency}": [answer.latency_s for answer in outcome.answers]
        for case, outcome in zip(asked, outcomes, strict=True)
    }
    conditions = {"hf_threads": other["threads"], "openvino": "not run: no --openvino PYTHON"}
    if third:
        conditions["openvino"] = {"version": third["openvino"], "defaults": third["defaults"]}
    bench.publish(claims, samples, model=SHAPE, **conditions, rows=rows)


if __name__ == "__main__":
    main()
