"""A unit of one model in this process, and requests through it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from bench.gpu.running.listener import Listener
from bench.gpu.running.models import blocks_for
from bench.gpu.running.run import Run
from muxcluster.core.job import WorkerSpec
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec
from muxcluster.engine.unit.unit import Unit

# Prompt tokens of a job: enough to make a prefill of an 8B model bound by the matrix rate.
TOKEN_BUDGET = 8192


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A request."""

    prompt: NDArray[np.int32]  # int32 [n]
    output_tokens: int  # as many as it will get


def random_requests(
    rng: np.random.Generator, count: int, lengths: tuple[int, int], vocab_size: int
) -> list[Asked]:
    """Prompts of random tokens; prompts and outputs each of a length drawn evenly from
    `lengths`, both ends in."""
    drawn = rng.integers(lengths[0], lengths[1] + 1, size=(count, 2)).tolist()
    return [
        Asked(rng.integers(vocab_size, size=prompt, dtype=np.int32), output)
        for prompt, output in drawn
    ]


def device_name(run: Run) -> str:
    """As UnitSpec wants it."""
    return "cpu" if run.device.type == "cpu" else "cuda:0"


def dtype_of(run: Run) -> str:
    """16-bit, but fp32 where only the script is tried out."""
    return "float32" if run.tiny else "bfloat16"


def unit_of(run: Run, model: ModelSpec, room: tuple[int, int], num_bytes: int) -> UnitSpec:
    """The model alone on the whole GPU, in this process.

    room: (sequences, tokens of each) that the KV pool holds. num_bytes: of a block.
    """
    sequences, tokens = room
    return UnitSpec(
        unit_id="bench",
        models=(replace(model, max_seqs=sequences),),
        num_blocks=blocks_for(model, sequences, tokens, num_bytes),
        block_bytes=num_bytes,
        workers=(WorkerSpec(0, (1.0,)),),
        scheduler=SchedulerSpec(lane="mixed", token_budget=TOKEN_BUDGET, pipeline_depth=2),
        device=device_name(run),
        partition="none",
        num_threads=1,
    )


class Serving:
    """A started unit of one model."""

    def __init__(self, spec: UnitSpec) -> None:
        self._model = spec.models[0].name
        self._listener = Listener()
        self._unit = Unit(spec, lambda deltas: self._listener.hear(deltas))
        self._num_runs = 0

    def start(self) -> None:
        self._unit.start()

    def close(self) -> None:
        self._unit.close()

    def run(self, asked: Sequence[Asked], until_s: float) -> tuple[float, Listener]:
        """All of them at once, greedily, to their ends: when they came (by `time.monotonic`), and
        what was heard, ids "0", "1", ... in the order of `asked`.

        Raises TimeoutError at `until_s`, RuntimeError where an answer is not whole.
        """
        listener = self._listener = Listener()
        start_s = monotonic()
        for index, each in enumerate(asked):
            sampling = SamplingParams(
                temperature=0.0, max_tokens=each.output_tokens, ignore_eos=True
            )
            self._unit.submit(Request(str(index), self._model, each.prompt, sampling))
        if not listener.wait(len(asked), until_s):
            ended = sum(bool(heard.end) for heard in listener.heard.values())
            raise TimeoutError(f"{ended} of {len(asked)} requests had ended when time was up")
        for index, each in enumerate(asked):
            heard = listener.heard[str(index)]
            if heard.end != "finished" or len(heard.tokens) != each.output_tokens:
                raise RuntimeError(
                    f"request {index}: {len(heard.tokens)} of {each.output_tokens} tokens, "
                    f"{heard.end}"
                )
        return start_s, listener


@contextmanager
def serving(spec: UnitSpec) -> Iterator[Serving]:
    """Started; closed at the end."""
    unit = Serving(spec)
    unit.start()
    try:
        yield unit
    finally:
        unit.close()
