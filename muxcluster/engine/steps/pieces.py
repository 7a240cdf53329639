"""A job's rows in pieces that run side by side on the CPU, each on one thread."""

# Threads that share every product wait for each other some two hundred times a step, and for
# whatever else runs on one of the cores each time; pieces wait for each other once.

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import numpy as np
import torch

from muxcluster.core.job import Rows
from muxcluster.engine.sampling.results import RowsResult

# Enough for a product to run at full speed, few enough that threads end at about one time.
PIECE_TOKENS = 256
# Tokens per thread, times the number of threads, below which pieces do not pay. Each piece reads
# all weights, so the more threads read, the more tokens each needs. (Two threads, two quiet cores,
# a 56M Llama: a decode step of 32 rows takes 31.5 ms in pieces and 25.7 whole; beside other work
# pieces take 57 ms and whole ones 191, because barriers wait, but decode steps are mostly alone.)
MIN_TOKENS = 17

T = TypeVar("T")


def cut(rows: Rows, num_threads: int) -> list[slice]:
    """Return row ranges of about as many tokens each; one range if cutting does not pay.

    It does not pay with few tokens, and if one row has most of them.
    """
    ends = np.cumsum(rows.counts)
    total = int(ends[-1]) if len(ends) else 0
    if num_threads < 2 or total < MIN_TOKENS * num_threads**2:
        return [slice(0, len(rows))]
    num_pieces = num_threads * max(1, round(total / (num_threads * PIECE_TOKENS)))
    targets = total * np.arange(1, num_pieces) / num_pieces
    bounds = np.unique(np.concatenate(([0], np.searchsorted(ends, targets) + 1, [len(rows)])))
    pieces = [slice(a, b) for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]
    largest = max(int(rows.counts[piece].sum()) for piece in pieces)
    return pieces if largest * num_threads <= 1.3 * total else [slice(0, len(rows))]


def part(rows: Rows, piece: slice) -> Rows:
    prefixes = None if rows.prefixes is None else rows.prefixes.of(piece)
    starts, counts, samples = rows.starts[piece], rows.counts[piece], rows.samples[piece]
    drafts = None if rows.drafts is None else rows.drafts.of(piece)
    return Rows(rows.table_rows[piece], starts, counts, samples, prefixes, drafts)


def joined(results: Sequence[RowsResult], pieces: Sequence[slice]) -> RowsResult:
    """Return the results of the pieces of a job as one of the whole job."""
    starts = [piece.start for piece in pieces]
    return RowsResult(
        tokens=np.concatenate([result.tokens for result in results], axis=1),
        logprobs=_shifted([result.logprobs for result in results], starts),
        prompt_logprobs=_shifted([result.prompt_logprobs for result in results], starts),
        is_broken=np.concatenate([result.is_broken for result in results]),
        refused=_shifted([result.refused for result in results], starts),
        mask_wait_s=max(result.mask_wait_s for result in results),
        runs=_shifted([result.runs for result in results], starts),
        vectors=_shifted([result.vectors for result in results], starts),
    )


def _shifted(maps: Sequence[Mapping[int, T]], starts: Sequence[int]) -> Mapping[int, T]:
    return {
        start + row: value
        for entries, start in zip(maps, starts, strict=True)
        for row, value in entries.items()
    }


class PieceThreads:
    """Threads that use one core each in torch; made at the first use, so after a fork."""

    def __init__(self) -> None:
        self._pools: dict[int, ThreadPoolExecutor] = {}

    def run(
        self, work: Callable[[Rows], RowsResult], rows: Rows, pieces: Sequence[slice], at_once: int
    ) -> RowsResult:
        """Run `work` on every piece. Raises what it raises, after all pieces have ended."""
        pool = self._pools.get(at_once)
        if pool is None:
            pool = ThreadPoolExecutor(at_once, "piece", torch.set_num_threads, (1,))
            self._pools[at_once] = pool

        @torch.inference_mode()
        def one(piece: slice) -> RowsResult:
            return work(part(rows, piece))

        running = [pool.submit(one, piece) for piece in pieces]
        wait(running)
        return joined([each.result() for each in running], pieces)
