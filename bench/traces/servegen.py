"""ServeGen (arXiv 2505.09999): production traffic of a model as the sum of its clients."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.traces.servegen_lengths import ClientLengths, read_client_lengths
from bench.traces.steps import Steps
from muxcluster.workload.arrival import Arrival, merged
from muxcluster.workload.files.rows import Row, csv_rows
from muxcluster.workload.seeds import rng_for

WINDOW_S = 600.0
_RATE_COLUMNS = ("t_s", "client", "rate_per_s", "pattern", "p1")
_PATTERNS = ("Gamma", "Weibull")


@dataclass(frozen=True, slots=True)
class ClientWindow:
    """How one client sends for 600 s."""

    start_s: float
    rate_per_s: float
    pattern: str
    shape: float  # of the pattern's distribution of gaps

    def times(self, rng: np.random.Generator, scale: float) -> NDArray[np.float64]:
        """Ascending times: as many as rate · scale · 600 s says, a fraction by chance.

        Gaps are drawn by shape and rescaled to fill the window, as ServeGen does.
        """
        wanted = self.rate_per_s * scale * WINDOW_S
        count = int(wanted) + int(rng.random() < wanted % 1.0)
        if self.pattern == "Gamma":
            gaps = rng.gamma(self.shape, 1.0, count + 1)
        else:
            gaps = rng.weibull(self.shape, count + 1)
        # gaps of a shape near 0 can all be too small for a float
        places = np.cumsum(gaps / max(gaps.max(), np.finfo(np.float64).tiny))
        total = places[-1] if places[-1] > 0 else 1.0
        return np.asarray(self.start_s + WINDOW_S * places[:-1] / total, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class ServeGen:
    """One model's clients: their windows in order of time, and lengths."""

    windows: Mapping[str, Sequence[ClientWindow]]
    lengths: Mapping[str, ClientLengths]

    def arrivals(
        self, model: str, seed: int, start_s: float, end_s: float, scale: float = 1.0
    ) -> Iterator[Arrival]:
        """Requests of the trace's span [start_s, end_s), time 0 at its start.

        scale: factor on every rate. One span's requests do not depend on where others end.
        Prompt and output lengths are drawn apart: the trace has no joint. A client without lengths
        of its own takes those of another, drawn by rate. Raises ValueError for an empty span or a
        scale not above 0.
        """
        if not (start_s < end_s and scale > 0):
            raise ValueError("needs a span and a scale above 0")
        streams = (
            self._of_client(client, model, seed, (start_s, end_s, scale)) for client in self.windows
        )
        return merged(streams)

    def _of_client(
        self, client: str, model: str, seed: int, cut: tuple[float, float, float]
    ) -> Iterator[Arrival]:
        start_s, end_s, scale = cut
        lengths = self.lengths.get(client) or self._stand_in(
            rng_for(seed, "servegen", model, client)
        )
        for window in self.windows[client]:
            if window.start_s + WINDOW_S <= start_s or window.start_s >= end_s:
                continue
            label = f"{window.start_s:.0f}"
            rng = rng_for(seed, "servegen", model, client, label)
            times = window.times(rng, scale)
            prompts, outputs = lengths.draw(rng, window.start_s, len(times))
            for index in np.flatnonzero((times >= start_s) & (times < end_s)).tolist():
                yield Arrival(
                    float(times[index]) - start_s,
                    f"{model}/{client}/{label}/{index}",
                    model,
                    int(prompts[index]),
                    int(outputs[index]),
                )

    def _stand_in(self, rng: np.random.Generator) -> ClientLengths:
        clients = list(self.lengths)
        rates = np.array([self.lengths[client].day_mean_rate for client in clients])
        return self.lengths[clients[int(rng.choice(len(clients), p=rates / rates.sum()))]]


def read_servegen(folder: Path, name: str) -> ServeGen:
    """The clients of `name` (m-large, deepseek-r1, ...) from its two files. Raises ConfigError."""
    windows: defaultdict[str, list[ClientWindow]] = defaultdict(list)
    for row in csv_rows(folder / f"{name}.client_rates.csv", _RATE_COLUMNS):
        of_client, window = windows[row.text("client")], _window(row)
        if of_client and window.start_s < of_client[-1].start_s + WINDOW_S:
            row.fail("t_s", "expected windows of 600 s in order of time")
        of_client.append(window)
    return ServeGen(dict(windows), read_client_lengths(folder / f"{name}.length_quantiles.json"))


def read_total_rates(path: Path) -> dict[str, Steps]:
    """Each model's rate over the days of `total_rate_600s.csv`, requests/s. Raises ConfigError."""
    starts: list[float] = []
    rates: defaultdict[str, list[float]] = defaultdict(list)
    for row in csv_rows(path, ("t_s",)):
        starts.append(row.number("t_s"))
        if starts[-1] != WINDOW_S * (len(starts) - 1):
            row.fail("t_s", f"expected a row every {WINDOW_S:g} s from 0 on")
        for name in row.fields:
            if name != "t_s":
                rates[name].append(row.number(name))
    return {name: Steps(tuple(starts), tuple(values)) for name, values in rates.items()}


def _window(row: Row) -> ClientWindow:
    pattern = row.text("pattern")
    if pattern not in _PATTERNS:
        row.fail("pattern", f"expected one of {', '.join(_PATTERNS)}, found {pattern!r}")
    shape = row.number("p1")
    if shape == 0.0:
        row.fail("p1", "expected a shape above 0")
    return ClientWindow(row.number("t_s"), row.number("rate_per_s"), pattern, shape)
