"""One part of a GPU bench: checks, timed cases and their record."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from bench.gpu.running.ceilings import Ceilings
from bench.gpu.running.clock import Clock, Timing
from bench.gpu.running.found import NO_TIME_LEFT
from bench.harness import write_whole

Call = Callable[[], Any]


@dataclass(slots=True)
class Run:
    """One part of a bench, with its checks, timed cases and samples."""

    device: torch.device  # where tensors live
    clock: Clock
    ceilings: Ceilings
    tiny: bool  # smoke shapes
    ends_at: float  # no case starts after it (`time.monotonic`)
    # written anew after every case, so that a kernel that hangs or kills the process loses nothing
    # but itself
    path: Path
    given: dict[str, Any] = field(default_factory=dict)  # what the part was told beside that
    checks: list[dict[str, Any]] = field(default_factory=list)  # one entry a correctness case
    rows: list[dict[str, Any]] = field(default_factory=list)  # one a timed case
    samples: dict[str, tuple[float, ...]] = field(default_factory=dict)  # seconds by series
    part: str = ""  # whose entries are being made; each entry says so
    # seconds and failure ("": none) of the parts that have ended
    ended: dict[str, dict[str, Any]] = field(default_factory=dict)
    series: dict[str, str] = field(default_factory=dict)  # the part of each series of samples

    def end(self, seconds: float, failure: str) -> None:
        """Write down that the part has ended, and how."""
        self.ended[self.part] = {"seconds": seconds, "failure": failure}
        self._save()

    def check(self, kernel: str, case: str, error: Callable[[], float], allowed: float) -> None:
        """Keep whether `error()`, a relative one, is at most `allowed`; NaN never is."""
        entry: dict[str, Any] = {"kernel": kernel, "case": case, "allowed": allowed}
        try:
            found = error()
            entry["ok"] = found <= allowed
            # JSON has no NaN.
            entry |= {"error": found} if isfinite(found) else {"failure": f"error is {found}"}
        except Exception as failure:  # noqa: BLE001 - one failure must not hide the others
            entry |= {"ok": False, "failure": _first_lines(failure)}
        self.checks.append(self._of_part(entry))
        self._save()
        if not entry["ok"]:
            print(f"WRONG {kernel} {case}: {entry.get('failure', entry.get('error'))}", flush=True)

    def time(
        self,
        kernel: str,
        case: str,
        call: Call,
        *,
        moved: float = 0.0,
        flops: float = 0.0,
        rivals: Mapping[str, Call] | None = None,
    ) -> None:
        """Keep the seconds of `call` and of each rival doing the same work.

        moved: the fewest bytes that the work reads and writes. flops: its operations.
        """
        name = f"{kernel} {case}"
        if monotonic() > self.ends_at:
            late = {"kernel": kernel, "case": case, "failure": NO_TIME_LEFT}
            self.rows.append(self._of_part(late))
            return
        row: dict[str, Any] = {"kernel": kernel, "case": case}
        timing = self._timed(name, call, row)
        if timing is not None:
            seconds = timing.median_s
            row |= {"us": seconds * 1e6, "how": timing.how}
            if moved:
                row["share_of_copy"] = moved / seconds / self.ceilings.copy_bytes_per_s
            if flops:
                row["share_of_matmul"] = flops / seconds / self.ceilings.matmul_flops_per_s
        row["rivals"] = {}
        for rival, other in (rivals or {}).items():
            against: dict[str, Any] = {}
            timed = self._timed(f"{name} {rival}", other, against)
            if timed is not None:
                against |= {"us": timed.median_s * 1e6, "how": timed.how}
                if timing is not None:
                    against["times_faster"] = timed.median_s / timing.median_s
            row["rivals"][rival] = against
        self.rows.append(self._of_part(row))
        self._save()
        print(line(row), flush=True)

    def keep(self, row: dict[str, Any], samples: Mapping[str, Sequence[float]]) -> None:
        """Keep a case that was measured elsewhere. samples: by series."""
        self.rows.append(self._of_part(row))
        for name, series in samples.items():
            self._sample(name, series)
        self._save()

    def _timed(self, name: str, call: Call, entry: dict[str, Any]) -> Timing | None:
        try:
            timing = self.clock.time(call)
        except Exception as failure:  # noqa: BLE001 - one failure must not stop the others
            entry["failure"] = _first_lines(failure)
            return None
        self._sample(name, timing.samples_s)
        return timing

    def _sample(self, name: str, series: Sequence[float]) -> None:
        self.samples[name] = tuple(series)
        self.series[name] = self.part

    def _of_part(self, entry: dict[str, Any]) -> dict[str, Any]:
        return {**entry, "part": self.part} if self.part else entry

    def _save(self) -> None:
        kept = {
            "checks": self.checks,
            "rows": self.rows,
            "samples": self.samples,
            "ended": self.ended,
            "series": self.series,
        }
        write_whole(self.path, json.dumps(kept))


def line(row: Mapping[str, Any]) -> str:
    """A timed case as one line of text."""
    parts = [f"{row['kernel']:<17} {row['case']:<44}"]
    parts.append(f"{row['us']:>9.1f} us" if "us" in row else row["failure"])
    for share in ("share_of_copy", "share_of_matmul"):
        if share in row:
            parts.append(f"{row[share]:.0%} of {share.rpartition('_')[2]}")
    for rival, against in row.get("rivals", {}).items():
        if "times_faster" in against:
            parts.append(f"{against['times_faster']:.2f}x {rival}")
        else:
            parts.append(f"{rival}: {against.get('failure', 'timed')}")
    return "  ".join(parts)


def relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of what was expected, in float64."""
    exact = expected.double()
    return float((result.double() - exact).norm() / exact.norm())


def _first_lines(failure: Exception) -> str:
    text = f"{type(failure).__name__}: {failure}"
    return " | ".join(text.splitlines()[:4])[:400]
