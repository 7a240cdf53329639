"""Output tokens/s over HTTP against Hugging Face on the same model and requests, in one run.

The model is a Llama of 56.4 million parameters with random weights: 8 layers, hidden size 512,
8 heads and 4 KV heads of 64, intermediate size 1408, vocabulary 32,000, untied. Requests are
prompts of 32 to 128 random tokens and a fixed number of output tokens each (which is the best case
of a static batch: no row waits for a longer one). Ours is the whole server as `muxcluster serve`
starts it, over HTTP with the client on the same cores, and then its unit alone, driven in process
as the others are. Theirs is `generate` on batches of as many requests as run at once, and
transformers' continuous batching with cache and batch sized for that; neither pays for HTTP. KV
pools hold all requests. Everything is greedy, fp32 (our unit in bf16 too) and on all cores. With
`--openvino PYTHON`, the path of a Python that has openvino-genai, its continuous batching runs
too, in fp32 and in what it chooses by itself (bf16 where the processor has it). Claims: ours over
HTTP over the better of Hugging Face's and over OpenVINO's fp32; our unit in process over
OpenVINO's fp32, and in bf16 over OpenVINO's own choice (which keeps keys and values in 8 bits, ours
in 16).
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import yaml

from bench.harness import ROOT, Bench, cannot_run, make_parser
from bench.online.rows import Case, Measured, claims_of, row_of
from bench.processes import cpu_seconds, settle
from muxcluster.cli.server.launch import free_address, prepare, serving, url_of
from muxcluster.config.load import load_config
from muxcluster.core.inputs.web_url import HttpAddress
from muxcluster.demo.models import build_model
from muxcluster.loadgen.exchange import Target, request_bytes
from muxcluster.loadgen.load import Outcome, Pace, run_load
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
# Of our pool, as of OpenVINO's. The default for a CPU holds a quarter of the longest sequences, 26
# of these requests.
KV_GB = 1


class Everywhere(NamedTuple):
    """The same requests on all engines."""

    rows: list[dict[str, Any]]  # of the record, a case each
    measured: list[Measured]
    conditions: dict[str, Any]  # of the others


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


def write_config(path: Path, num_tokens: int, dtype: str, quantize: str = "none") -> Path:
    """The configuration that serves the model in directory `path`."""
    config = path.parent / f"{dtype}-{quantize}.yaml"
    model = {"name": NAME, "path": str(path), "max_seqs": 64, "max_model_len": 256}
    formats = {"dtype": dtype, "quantize": quantize}
    lengths = {"prompt_tokens": 80, "output_tokens": num_tokens}
    policy = {"kv_gb": KV_GB}
    models = [{**model, **formats, **lengths}]
    config.write_text(yaml.safe_dump({"models": models, "policy": policy}))
    return config


def ours(config: Path, asked: Sequence[Case]) -> list[tuple[Outcome, dict[str, float]]]:
    """Each case through HTTP, with the processor seconds that each kind of process took."""
    prepared = prepare(load_config(config)).listening(free_address(HttpAddress("127.0.0.1", 0)))
    found = []
    with serving(prepared):
        url = url_of(prepared.address)
        # Not the prompts that are measured: they would stay in the prefix cache.
        turned = [prompt[::-1] for prompt in asked[-1].prompts]
        warm_up = replace(asked[-1], num_tokens=4, prompts=turned)
        asyncio.run(load(url, warm_up))
        settle()
        for case in asked:
            before = cpu_seconds(os.getpid())
            outcome = asyncio.run(load(url, case))
            after = cpu_seconds(os.getpid())
            used = {name: after[name] - before.get(name, 0.0) for name in after}
            found.append((outcome, {**used, "client": outcome.client_cpu_s}))
    return found


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


def alone(
    path: Path,
    asked: Sequence[Case],
    script: str,
    python: str = sys.executable,
    kinds: Sequence[str] = ("default", "fp32"),
) -> dict[str, Any]:
    """Each case with one engine alone, in a process of its own: `script` of bench/online.

    path: the model's directory, or for ours a configuration. kinds: of OpenVINO's arithmetic.
    """
    task = {
        "path": str(path),
        "kinds": list(kinds),
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
        (python, str(ROOT / "bench" / "online" / script)),
        input=json.dumps(task),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=environment,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check_openvino(python: str) -> None:
    """End the script where `python` is no Python that has openvino-genai."""
    try:
        tried = subprocess.run((python, "-c", "import openvino_genai"), capture_output=True)
    except OSError as error:
        cannot_run(f"--openvino {python}: {error.strerror}")
    if tried.returncode:
        cannot_run(f"--openvino {python}: this Python has no openvino-genai (pip install it there)")


def measure_all(folder: Path, asked: Sequence[Case], openvino: str | None) -> Everywhere:
    """Ours over HTTP, ours in process, Hugging Face's, OpenVINO's: one after the other."""
    path = make_model(folder)
    fp32, bf16 = (
        write_config(path, asked[0].num_tokens, dtype) for dtype in ("float32", "bfloat16")
    )
    http = ours(fp32, asked)
    units = [alone(config, asked, "unit.py") for config in (fp32, bf16)]
    hf = alone(path, asked, "hf.py")
    third = alone(path, asked, "openvino_genai.py", openvino) if openvino else None
    measured = [
        Measured(
            case,
            *http[number],
            *(unit["cases"][number] for unit in units),
            hf["cases"][number],
            third and {kind: cases[number] for kind, cases in third["cases"].items()},
        )
        for number, case in enumerate(asked)
    ]
    words = Tokenizer.load(path)
    conditions = {"hf_threads": hf["threads"], "openvino": "not run: no --openvino PYTHON"}
    if third:
        conditions["openvino"] = {"version": third["openvino"], "defaults": third["defaults"]}
    return Everywhere([row_of(each, words) for each in measured], measured, conditions)


def main() -> None:
    """Measure ours, then theirs; print a line a case; publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--concurrency", type=int, nargs="+", default=CONCURRENCY)
    parser.add_argument("--openvino", metavar="PYTHON", help="a Python that has openvino-genai")
    bench = Bench(parser)
    options = bench.options
    if options.openvino is not None:
        check_openvino(options.openvino)
    asked = cases(options.concurrency, options.seed, is_quick=options.quick)
    with tempfile.TemporaryDirectory(prefix="bench-serving-") as folder:
        found = measure_all(Path(folder), asked, options.openvino)
    for row in found.rows:
        print(json.dumps(row), flush=True)
    samples = {
        f"latency_s at {each.case.concurrency}": [answer.latency_s for answer in each.http.answers]
        for each in found.measured
    }
    claims = list(claims_of(found.rows))
    bench.publish(claims, samples, model=SHAPE, kv_gb=KV_GB, **found.conditions, rows=found.rows)


if __name__ == "__main__":
    main()
