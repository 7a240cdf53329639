"""A CPU unit whose models take turns in memory: seconds of a wake, and requests in time.

The unit is the one that `serve` starts (`ResidencyExecutor`, a process for each resident model),
driven in this process without HTTP. Parts of bench/residency.py.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from muxcluster.config.facts import read_facts
from muxcluster.core.events import FinishReason, TokenDelta
from muxcluster.core.job import Phase, WorkerSpec
from muxcluster.core.kvshape import KvShape
from muxcluster.core.request import Request, Slo
from muxcluster.core.residency import Move, MoveKind, Residency
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec
from muxcluster.demo.models import build_model
from muxcluster.engine.executor import Moved, MoveFailed
from muxcluster.engine.load.packing_cpu import PackedLinear, packs_correctly
from muxcluster.engine.residency.executor import ResidencyExecutor
from muxcluster.engine.unit.unit import Unit

GIB = 2**30
FAMILIES = (
    "llama",
    "opt",
    "mixtral",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen2_moe",
    "qwen3_moe",
    "gemma2",
    "gpt_neox",
    "mpt",
    "bloom",
)
PROMPT_TOKENS, OUTPUT_TOKENS = 24, 8
TARGET_S = 2.0  # in which a first token is in time
_CONTEXT = 128
_WAKE_S = 0.4  # predicted before any was measured
TIMEOUT_S = 300.0
_MAX_SEQS = 16


# Seconds of a wake


@dataclass(frozen=True, slots=True)
class Wakes:
    """Seconds per GiB of one model, measured alternately; bytes of its linears and of all."""

    linear_bytes: int
    total_bytes: int
    pack_s: tuple[float, ...]  # reading and packing the linears, in this process
    copy_s: tuple[float, ...]  # copying as many bytes as the whole model has
    wake_s: tuple[float, ...]  # from the move's start to workers that take jobs

    def over_possible(self) -> float:
        """Rate of wakes over the rate at which linears alone are read and packed; medians."""
        possible_s = float(np.median(self.pack_s)) / self.linear_bytes
        return possible_s / (float(np.median(self.wake_s)) / self.total_bytes)

    def over_copy(self) -> float:
        """Rate of wakes over that of a copy in memory; medians."""
        return float(np.median(self.copy_s)) / float(np.median(self.wake_s))

    def per_gib(self, seconds: Sequence[float], num_bytes: int) -> float:
        return round(float(np.median(seconds)) * GIB / num_bytes, 3)


def measure_wakes(folder: Path, num_layers: int, repetitions: int) -> Wakes:
    """Wake a Llama of wide layers again and again; after each wake, pack and copy as much.

    The first wake, which runs the model to check it, does not count.
    """
    path = build_model(
        folder / "wide",
        "llama",
        hidden_size=1024,
        intermediate_size=4096,
        num_attention_heads=16,
        num_key_value_heads=4,
        num_hidden_layers=num_layers,
    )
    file = path / "model.safetensors"
    spec = unit_of({"wide": path}, room=None)
    executor = ResidencyExecutor(spec)
    linear_bytes, total_bytes = _bytes_of(file)
    pack_s, copy_s, wake_s = [], [], []
    torch.set_num_threads(1)
    try:
        executor.start()
        for number in range(repetitions + 1):
            seconds = _move(executor, 2 * number, MoveKind.WAKE)
            _move(executor, 2 * number + 1, MoveKind.PARK)
            if number:
                wake_s.append(seconds)
                pack_s.append(_pack_seconds(file))
                copy_s.append(_copy_seconds(total_bytes))
    finally:
        executor.close()
    return Wakes(linear_bytes, total_bytes, tuple(pack_s), tuple(copy_s), tuple(wake_s))


def _move(executor: ResidencyExecutor, move_id: int, kind: MoveKind) -> float:
    executor.move(Move(move_id, "wide", kind))
    while True:
        for outcome in executor.wait(None):
            if isinstance(outcome, Moved):
                return outcome.seconds
            if isinstance(outcome, MoveFailed):
                raise RuntimeError(outcome.message)


def _bytes_of(file: Path) -> tuple[int, int]:
    """Bytes of the linears, and of all weights."""
    linear = total = 0
    with safe_open(file, "pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - no mapping
            tensor = tensors.get_tensor(name)
            total += tensor.nbytes
            linear += tensor.nbytes if _is_linear(name, tensor) else 0
    return linear, total


def _is_linear(name: str, tensor: torch.Tensor) -> bool:
    return tensor.ndim == 2 and "embed" not in name


@torch.no_grad()
def _pack_seconds(file: Path) -> float:
    """Seconds to read the linears of a file and to pack them, all kept as a unit keeps them."""
    packs_correctly(torch.float32)  # it is known to a pool owner before any wake
    kept = []
    start_s = time.perf_counter()
    with safe_open(file, "pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - no mapping
            tensor = tensors.get_tensor(name)
            if _is_linear(name, tensor):
                linear = torch.nn.Linear(*reversed(tensor.shape), bias=False, device="meta")
                linear.weight = torch.nn.Parameter(tensor, requires_grad=False)
                kept.append(PackedLinear(linear))
    return time.perf_counter() - start_s


def _copy_seconds(num_bytes: int) -> float:
    source = torch.ones(num_bytes, dtype=torch.uint8)
    start_s = time.perf_counter()
    source.clone()
    return time.perf_counter() - start_s


# Requests in time


@dataclass(frozen=True, slots=True)
class Ask:
    """A request of the trace."""

    at_s: float
    request_id: str
    model: str
    prompt: np.ndarray


def trace_of(names: Sequence[str], rate: float, seconds: float, seed: int) -> list[Ask]:
    """Poisson arrivals; popularity by Zipf's law, the first name first."""
    rng = np.random.default_rng(seed)
    shares = 1 / np.arange(1, len(names) + 1)
    count = rng.poisson(rate * seconds)
    times = np.sort(rng.random(count)) * seconds
    models = rng.choice(len(names), count, p=shares / shares.sum())
    return [
        Ask(
            float(at),
            f"{number}",
            names[model],
            rng.integers(5, 500, PROMPT_TOKENS, dtype=np.int32),
        )
        for number, (at, model) in enumerate(zip(times, models, strict=True))
    ]


@dataclass
class Load:
    """Sends a trace to a unit at its times, and notes what became of each request."""

    asks: Sequence[Ask]
    sent_s: dict[str, float] = field(default_factory=dict)
    first_s: dict[str, float] = field(default_factory=dict)
    num_tokens: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, FinishReason | None] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def hear(self, deltas: Mapping[str, TokenDelta]) -> None:
        """The unit's output; on its thread."""
        now = time.monotonic()
        with self.changed:
            for name, delta in deltas.items():
                if delta.tokens:
                    self.first_s.setdefault(name, now - self.sent_s[name])
                    self.num_tokens[name] = self.num_tokens.get(name, 0) + len(delta.tokens)
                if delta.finished is not None or delta.rejected is not None:
                    assert name not in self.reasons, f"{name} ended twice"
                    end = delta.finished
                    self.reasons[name] = None if end is None else end.reason
            self.changed.notify_all()

    def run(self, unit: Unit) -> None:
        """Send all and wait for every end. Raises TimeoutError if none comes for long."""
        start_s = time.monotonic()
        sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=OUTPUT_TOKENS)
        for ask in self.asks:
            time.sleep(max(0.0, start_s + ask.at_s - time.monotonic()))
            self.sent_s[ask.request_id] = time.monotonic()
            unit.submit(Request(ask.request_id, ask.model, ask.prompt, sampling))
        with self.changed:
            is_over = self.changed.wait_for(
                lambda: len(self.reasons) == len(self.asks), timeout=TIMEOUT_S
            )
        if not is_over:
            raise TimeoutError(f"{len(self.asks) - len(self.reasons)} requests never end")

    def result(self) -> dict[str, Any]:
        """Shares and seconds of all requests; a lost one has no whole answer."""
        first_s = np.array([self.first_s.get(each.request_id, np.inf) for each in self.asks])
        whole = [
            self.reasons[each.request_id] is FinishReason.LENGTH
            and self.num_tokens[each.request_id] == OUTPUT_TOKENS
            for each in self.asks
        ]
        return {
            "requests": len(self.asks),
            "in_time": round(float((first_s <= TARGET_S).mean()), 4),
            "ttft_p50_s": round(float(np.median(first_s)), 3),
            "ttft_p99_s": round(float(np.quantile(first_s, 0.99, method="higher")), 3),
            "lost": len(whole) - sum(whole),
        }


def build_families(folder: Path, count: int) -> dict[str, Path]:
    """Tiny models of so many families, by name."""
    return {name: build_model(folder / name, name) for name in FAMILIES[:count]}


def unit_of(paths: Mapping[str, Path], room: int | None, *, wakes: str = "deadline") -> UnitSpec:
    """A unit of these models with `room` bytes for their weights; None: no more than the largest.

    One worker runs prompts and decodes.
    """
    models = tuple(_model(name, path) for name, path in paths.items())
    widest = max(2 * each.shape.head_dim * each.shape.itemsize for each in models)
    blocks = max(each.shape.blocks_per_column for each in models)
    largest = max(each.resident_bytes for each in models)
    return UnitSpec(
        unit_id="parked",
        models=models,
        num_blocks=blocks * len(models) * 64,
        block_bytes=16 * widest,
        workers=(WorkerSpec(0, (1.0,), frozenset(Phase)),),
        scheduler=SchedulerSpec(lane="mixed", packing="priority", wakes=wakes),
        partition="threads",
        num_threads=1,
        resident_bytes=largest if room is None else max(room, largest),
    )


def _model(name: str, path: Path) -> ModelSpec:
    facts = read_facts(path)
    shape = facts.shape
    return ModelSpec(
        name=name,
        path=str(path),
        shape=KvShape(shape.num_layers, shape.num_kv_heads, shape.head_dim, 4),
        vocab_size=shape.vocab_size,
        max_model_len=_CONTEXT,
        eos_token_ids=facts.eos_token_ids,
        max_seqs=_MAX_SEQS,
        mean_prompt_tokens=PROMPT_TOKENS,
        mean_output_tokens=OUTPUT_TOKENS,
        slo=Slo(TARGET_S, 1.0),
        residency=Residency.ON_DEMAND,
        resident_bytes=bytes_of(path),
        wake_s=_WAKE_S,
    )


def serve(spec: UnitSpec, asks: Sequence[Ask], *, num_kills: int = 0, seed: int = 0) -> Load:
    """Answer a trace; meanwhile kill `num_kills` of the unit's processes, each kind in turn."""
    load = Load(asks)
    executor = ResidencyExecutor(spec)
    unit = Unit(spec, load.hear, executor=executor)
    unit.start()
    try:
        with _killing(executor, num_kills, asks[-1].at_s if asks else 0.0, seed):
            load.run(unit)
    finally:
        unit.close()
    return load


@contextmanager
def _killing(
    executor: ResidencyExecutor, num_kills: int, seconds: float, seed: int
) -> Iterator[None]:
    """Kill workers and owners of models in turn with SIGKILL, at even times; last the pool's."""
    over = threading.Event()
    rng = random.Random(seed)

    def kill() -> None:
        for number in range(num_kills):
            if over.wait(seconds / (num_kills + 1)):
                return
            owners = list(executor.model_pids.values())
            victims = owners if number % 2 else [pid for each in owners for pid in _children(each)]
            if number == num_kills - 1:
                victims = [executor.owner_pid]
            if victims:
                with suppress(ProcessLookupError):
                    os.kill(rng.choice(victims), signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def bytes_of(path: Path) -> int:
    """Bytes of a model's weights."""
    return (path / "model.safetensors").stat().st_size


def third_of(paths: Mapping[str, Path]) -> int:
    """The memory for weights of all systems: a third of them all, at least the largest one."""
    sizes = [bytes_of(path) for path in paths.values()]
    return max(sum(sizes) // 3, *sizes)


def rivals(
    paths: Mapping[str, Path], rates: Sequence[float], seconds: float, seed: int
) -> list[dict[str, Any]]:
    """Both policies on the same unit, memory and traces.

    A row for each rate and policy, in that order.
    """
    room = third_of(paths)
    rows = []
    for rate in rates:
        asks = trace_of(list(paths), rate, seconds, seed)
        for system, wakes in (("ours", "deadline"), ("swap", "swap")):
            found = serve(unit_of(paths, room, wakes=wakes), asks).result()
            rows.append({"system": system, "rate": rate, **found})
            print(rows[-1], flush=True)
    return rows


def with_kills(
    paths: Mapping[str, Path], rate: float, seconds: float, num_kills: int, seed: int
) -> dict[str, Any]:
    """Ours while processes are killed."""
    asks = trace_of(list(paths), rate, seconds, seed)
    found = serve(unit_of(paths, third_of(paths)), asks, num_kills=num_kills, seed=seed).result()
    row = {"system": "ours", "rate": rate, "kills": num_kills, **found}
    print(row, flush=True)
    return row
