"""A side of bench/several_models.py: OpenVINO GenAI's continuous batching, a pipeline a model.

Runs in an environment of its own that has openvino-genai, and needs nothing else of ours than
bench/online/openvino_llama.py, which writes the models for it. Lines as those of unit.py. The
pipelines of one process take steps in turn, each on all threads it has.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np
import openvino as ov
import openvino_genai as genai

from bench.online.openvino_llama import KINDS, write_model

_BLOCK_TOKENS = 32


class Model:
    """A pipeline and its open requests."""

    def __init__(self, path: Path, folder: Path, task: Mapping[str, Any]) -> None:
        write_model(path, folder, in_int8=False)
        scheduler = genai.SchedulerConfig()
        scheduler.num_kv_blocks = task["kv_tokens"] // _BLOCK_TOKENS
        scheduler.enable_prefix_caching = False
        properties = dict(KINDS["fp32"])
        if task["threads"]:
            properties["INFERENCE_NUM_THREADS"] = str(task["threads"])
        self._pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", properties)
        self._open: dict[int, Any] = {}

    def add(self, number: int, prompt: Sequence[int], num_tokens: int) -> None:
        config = genai.GenerationConfig()
        config.max_new_tokens = num_tokens
        config.do_sample = False
        config.ignore_eos = True
        config.apply_chat_template = False
        ids = ov.Tensor(np.array([prompt], dtype=np.int64))
        self._open[number] = self._pipeline.add_request(number, ids, config)

    @property
    def is_busy(self) -> bool:
        return bool(self._open)

    def step(self) -> Mapping[int, int]:
        """Return the number of new tokens of each request that has some."""
        self._pipeline.step()
        found = {}
        for number, handle in list(self._open.items()):
            is_over = handle.get_status() == genai.GenerationStatus.FINISHED
            while handle.can_read():
                for output in handle.read().values():
                    found[number] = found.get(number, 0) + len(output.generated_ids)
            if is_over:
                del self._open[number]
        return found


def play(models: Mapping[str, Model], start_s: float, asks: Sequence[Any]) -> list[list[float]]:
    """Answer all requests; return first and last seconds and tokens of each."""
    rows: list[list[float]] = [[0.0, 0.0, 0] for _ in asks]
    num_sent = 0
    while num_sent < len(asks) or any(model.is_busy for model in models.values()):
        now_s = time.monotonic() - start_s
        while num_sent < len(asks) and asks[num_sent][0] <= now_s:
            _, name, prompt, num_tokens, _ = asks[num_sent]
            models[name].add(num_sent, prompt, num_tokens)
            num_sent += 1
        busy = [model for model in models.values() if model.is_busy]
        if not busy:
            time.sleep(max(0.0, asks[num_sent][0] - now_s))
        for model in busy:
            new = model.step()
            now_s = time.monotonic() - start_s
            for number, count in new.items():
                rows[number][0] = rows[number][0] or now_s
                rows[number][1] = now_s
                rows[number][2] += count
    return rows


def main(answers: TextIO) -> None:
    """Play until there is no more to play."""
    task = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory() as root:
        models = {
            name: Model(Path(path), Path(root) / name, task)
            for name, path in task["models"].items()
        }
        for name in models:
            play(models, time.monotonic(), [(0.0, name, [5, 6, 7], 4, "")])
        print("true", file=answers, flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            print(json.dumps(play(models, **asked)), file=answers, flush=True)


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as stream:
        os.dup2(2, 1)
        main(stream)
