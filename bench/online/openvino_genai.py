"""One more side of bench/serving.py: OpenVINO GenAI's continuous batching, same model and requests.

Runs in an environment of its own that has openvino-genai, on a model that openvino_llama.py writes.
Reads one JSON object from stdin, writes one to stdout. Greedy, all cores, no HTTP.
"""

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Instead of the script's folder: the script has the name of the package that it imports.
sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np
import openvino as ov
import openvino_genai as genai

from bench.online.openvino_llama import KINDS, write_model


def run(pipeline: Any, prompts: Sequence[Sequence[int]], case: Mapping[str, Any]) -> Any:
    """Output tokens per second, and the tokens; as many requests open as the case says."""
    config = genai.GenerationConfig()
    config.max_new_tokens = case["num_tokens"]
    config.do_sample = False
    config.ignore_eos = True
    config.apply_chat_template = False
    waiting = list(enumerate(prompts))[::-1]
    running: dict[int, Any] = {}
    tokens: dict[int, list[int]] = {}
    start_s = time.perf_counter()
    while waiting or running:
        while waiting and len(running) < case["concurrency"]:
            number, prompt = waiting.pop()
            ids = ov.Tensor(np.array([prompt], dtype=np.int64))
            running[number] = pipeline.add_request(number, ids, config)
        pipeline.step()
        for number, handle in list(running.items()):
            if handle.get_status() == genai.GenerationStatus.FINISHED:
                tokens[number] = list(handle.read_all()[0].generated_ids)
                del running[number]
    seconds = time.perf_counter() - start_s
    rows = [tokens[number] for number in range(len(prompts))]
    return sum(map(len, rows)) / seconds, rows


def main() -> None:
    """Every case, once per kind of arithmetic that the task names."""
    task = json.load(sys.stdin)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as root:
        for kind in task["kinds"]:
            folder = Path(root) / kind
            write_model(Path(task["path"]), folder, in_int8=kind == "int8")
            scheduler = genai.SchedulerConfig()
            scheduler.cache_size = 1  # GB
            scheduler.max_num_batched_tokens = 2048
            scheduler.enable_prefix_caching = False
            pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", KINDS[kind])
            run(pipeline, task["cases"][0]["prompts"][:1], {"num_tokens": 4, "concurrency": 1})
            rows = []
            for case in task["cases"]:
                rate, tokens = run(pipeline, case["prompts"], case)
                rows.append({"tokens_per_s": round(rate, 1), "tokens": tokens})
                print(kind, case["concurrency"], rate, file=sys.stderr, flush=True)
            found[kind] = rows
            del pipeline
    core = ov.Core()
    defaults = {
        name: str(core.get_property("CPU", name))
        for name in ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION")
    }
    json.dump({"cases": found, "openvino": ov.__version__, "defaults": defaults}, sys.stdout)


if __name__ == "__main__":
    main()
