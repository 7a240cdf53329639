"""Finds the multiprocessors that work really runs on."""

import torch

from muxcluster.kernels.sm_ids import sm_ids

_PROGRAMS_PER_SM = 32
_LEAST_SMS = 16


class SmProbe:
    """Records the multiprocessors of the current stream's work; can be captured in a graph."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        count = 1
        if device.type == "cuda":
            count = torch.cuda.get_device_properties(device).multi_processor_count
        programs = max(count, _LEAST_SMS) * _PROGRAMS_PER_SM
        self._ids = torch.full((programs,), -1, dtype=torch.int32, device=device)
        self._sums = torch.empty(programs, device=device)

    def launch(self) -> None:
        """Run on the current stream, without waiting."""
        sm_ids(self._ids, self._sums)

    def seen(self) -> frozenset[int]:
        """Return ids of the multiprocessors that the last launch ran on."""
        self._wait()
        found = frozenset(self._ids.tolist())
        self._ids.fill_(-1)
        self._wait()
        return found

    def run(self) -> frozenset[int]:
        """Launch, wait, and return what was seen."""
        self.launch()
        return self.seen()

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
