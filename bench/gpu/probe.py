"""Which multiprocessors work runs on, and how fast matrix products are there."""

from collections.abc import Sequence
from time import perf_counter

import torch
import triton
import triton.language as tl

_SPINS = 20_000
_PROGRAMS_PER_SM = 32
_SIZE = 4096


@triton.jit
def _where_am_i(sm_ids, sums, spins):
    """Each program notes its multiprocessor, and stays there long enough that all are needed."""
    program = tl.program_id(0)
    sm_id = tl.inline_asm_elementwise(
        "mov.u32 $0, %smid;", "=r,r", [program], dtype=tl.int32, is_pure=False, pack=1
    )
    total = program.to(tl.float32)
    for _ in range(spins):
        total = total * 0.999 + 1.0
    tl.store(sm_ids + program, sm_id)
    tl.store(sums + program, total)


class Probe:
    """Notes the multiprocessors of the current stream's work; can be captured in a graph."""

    def __init__(self) -> None:
        every = torch.cuda.get_device_properties(0).multi_processor_count
        self._programs = max(every, 16) * _PROGRAMS_PER_SM
        self._sm_ids = torch.full((self._programs,), -1, dtype=torch.int32, device="cuda")
        self._sums = torch.empty(self._programs, device="cuda")

    def launch(self) -> None:
        _where_am_i[(self._programs,)](self._sm_ids, self._sums, _SPINS)

    def seen(self) -> set[int]:
        """Ids of the multiprocessors that the last launch ran on."""
        torch.cuda.synchronize()
        found = set(self._sm_ids.tolist())
        self._sm_ids.fill_(-1)
        torch.cuda.synchronize()
        return found

    def run(self) -> set[int]:
        self.launch()
        return self.seen()


class Products:
    """bf16 matrix products of random numbers."""

    def __init__(self) -> None:
        made = (torch.randn(_SIZE, _SIZE, device="cuda").bfloat16() for _ in range(2))
        self._left, self._right = made
        self._result = self._left @ self._right
        torch.cuda.synchronize()

    def rate(self, streams: Sequence[torch.cuda.Stream], count: int = 40) -> list[float]:
        """FLOP/s on each stream, all at once."""
        spans = []
        for stream in streams:
            with torch.cuda.stream(stream):
                self._multiply(5)
        torch.cuda.synchronize()
        for stream in streams:
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            with torch.cuda.stream(stream):
                events[0].record()
                self._multiply(count)
                events[1].record()
            spans.append(events)
        torch.cuda.synchronize()
        work = 2 * _SIZE**3 * count
        return [work / (start.elapsed_time(end) / 1e3) for start, end in spans]

    def rate_over(self, seconds: float) -> float:
        """FLOP/s over that long by the host's clock, beside whatever else runs."""
        start, done = perf_counter(), 0
        while perf_counter() - start < seconds:
            self._multiply(10)
            torch.cuda.synchronize()
            done += 10
        return 2 * _SIZE**3 * done / (perf_counter() - start)

    def _multiply(self, count: int) -> None:
        # A result of its own each time: two streams must not write the same memory.
        for _ in range(count):
            torch.mm(self._left, self._right)
