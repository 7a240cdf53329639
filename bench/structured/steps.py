"""Decode steps of rows with and without constraints, in one runner and in turn."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from muxcluster.config.facts import read_facts
from muxcluster.constraints.process.supervisor import MaskProcess
from muxcluster.core.job import Admission, Job, JobResult, Phase, Rows, TableDelta, WorkerSpec
from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.core.sampling import Constraint, SamplingParams
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec
from muxcluster.engine.steps.runner import UnitRunner

NAME = "constrained"
BLOCK_TOKENS = 16
PROMPT_TOKENS = 64


def unit_of(
    path: Path, *, max_len: int, max_seqs: int, num_threads: int, joins_forced: bool = True
) -> UnitSpec:
    """One model, one worker on all cores. joins_forced: as in `SchedulerSpec`."""
    facts = read_facts(path)
    shape = facts.shape
    kv = KvShape(shape.num_layers, shape.num_kv_heads, shape.head_dim, 4)
    model = ModelSpec(
        NAME, str(path), kv, shape.vocab_size, max_len, facts.eos_token_ids, max_seqs=max_seqs
    )
    size = block_bytes(BLOCK_TOKENS, 4)
    columns = -(-max_len // kv.block_tokens(size))
    return UnitSpec(
        unit_id="u",
        models=(model,),
        num_blocks=max_seqs * columns * kv.blocks_per_column,
        block_bytes=size,
        workers=(WorkerSpec(0, (1.0,)),),
        scheduler=SchedulerSpec(lane="mixed", joins_forced=joins_forced),
        num_threads=num_threads,
    )


def server_ms(process: MaskProcess) -> float:
    """Return the processor milliseconds that the mask process's server has taken so far."""
    parent, ticks = process.pid, 0
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # in user mode and in the system
    return 1e3 * ticks / os.sysconf("SC_CLK_TCK")


class DecodeRows:
    """Rows of one runner from `first` on, which decode together, a token a step."""

    def __init__(
        self,
        runner: UnitRunner,
        rows: range,
        constraints: Sequence[Constraint | None],
        seed: int,
    ) -> None:
        self._runner = runner
        self._rows = np.array(rows, np.int32)
        self._length = PROMPT_TOKENS
        self.waits_ms: list[float] = []
        self.processor_ms: list[float] = []  # of all threads of this process
        _, layers, kv_heads, columns = runner.arena.model(NAME).tables.shape
        size, heads = len(rows), layers * kv_heads
        first = np.arange(rows.start * columns, rows.stop * columns, dtype=np.int32) * heads
        ids = first[:, None] + np.arange(heads, dtype=np.int32)
        every = np.arange(columns, dtype=np.int32)
        delta = TableDelta(np.repeat(self._rows, columns), np.tile(every, size), ids)
        prompts = np.random.default_rng(seed).integers(3, 250, (size, PROMPT_TOKENS))
        admissions = tuple(
            Admission(
                row,
                f"row {row}",
                prompt.astype(np.int32),
                PROMPT_TOKENS,
                SamplingParams(seed=row, ignore_eos=True, constraint=constraint),
            )
            for row, prompt, constraint in zip(rows, prompts, constraints, strict=True)
        )
        self._run(0, PROMPT_TOKENS, delta, admissions)

    def step(self) -> float:
        """Decode one token of every row; return the milliseconds that took."""
        nothing = TableDelta(*(np.empty(0, np.int32) for _ in range(2)), np.empty((0, 1), np.int32))
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        result = self._run(self._length, 1, nothing, ())
        taken_ms = 1e3 * (time.perf_counter() - begin_s)
        self.processor_ms.append(1e3 * (time.process_time() - begin_cpu_s))
        self.waits_ms.append(1e3 * result.mask_wait_s)
        self._length += 1
        return taken_ms

    def _run(
        self, start: int, count: int, delta: TableDelta, admissions: tuple[Admission, ...]
    ) -> JobResult:
        size = len(self._rows)
        rows = Rows(
            self._rows,
            np.full(size, start, np.int32),
            np.full(size, count, np.int32),
            np.ones(size, dtype=np.bool_),
        )
        return self._runner.execute(Job(0, NAME, Phase.MIXED, 0, 1.0, rows, delta, admissions))
