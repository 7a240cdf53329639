"""Lengths of ServeGen's clients: quantiles of each part of a prompt, and of the output, by time."""

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.traces.quantiles import Quantiles
from muxcluster.core.errors import ConfigError
from muxcluster.workload.files.rows import Row, json_document
from muxcluster.workload.marginals import Ints

_OUTPUT = "output_tokens"
_SUFFIX = "_tokens"


@dataclass(frozen=True, slots=True)
class ClientLengths:
    """One client's distributions."""

    day_mean_rate: float
    starts_s: tuple[float, ...]  # ascending
    # the parts of a prompt by start (text and images, or one), outputs: by start
    prompts: tuple[tuple[Quantiles, ...], ...]
    outputs: tuple[Quantiles, ...]

    def draw(self, rng: np.random.Generator, time_s: float, count: int) -> tuple[Ints, Ints]:
        """Prompt and output tokens int64 [count] by the latest distributions at that time."""
        at = max(bisect_right(self.starts_s, time_s) - 1, 0)
        parts = [part.amounts(rng, count) for part in self.prompts[at]]
        prompt = np.maximum(np.sum(parts, axis=0, dtype=np.int64), 1)
        return prompt, self.outputs[at].draw(rng, count)


def read_client_lengths(path: Path) -> dict[str, ClientLengths]:
    """The clients of `*.length_quantiles.json`. Raises ConfigError."""
    document = json_document(path)
    if not isinstance(document, dict) or not document:
        raise ConfigError(path, "", "expected an object of clients")
    return {client: _client(path, client, found) for client, found in document.items()}


def _client(path: Path, client: str, found: Any) -> ClientLengths:
    windows = found.get("windows") if isinstance(found, dict) else None
    if not isinstance(windows, dict) or not windows:
        raise ConfigError(path, client, "expected day_mean_rate and windows")
    rate = Row(path, None, found).number("day_mean_rate")
    starts = sorted(windows, key=lambda text: _start(path, client, text))
    parts = [_window(path, f"{client}.windows.{start}", windows[start]) for start in starts]
    return ClientLengths(
        rate,
        tuple(float(start) for start in starts),
        tuple(tuple(v for name, v in sorted(part.items()) if name != _OUTPUT) for part in parts),
        tuple(part[_OUTPUT] for part in parts),
    )


def _start(path: Path, client: str, text: str) -> float:
    if not text.isdecimal():
        raise ConfigError(path, f"{client}.windows", f"expected seconds, found {text!r}")
    return float(text)


def _window(path: Path, key: str, fields: Any) -> dict[str, Quantiles]:
    """Distributions by field; counts of images and shares of reasoning are not lengths."""
    if not isinstance(fields, dict):
        raise ConfigError(path, key, "expected an object of distributions")
    found = {
        name: _quantiles(path, f"{key}.{name}", value)
        for name, value in fields.items()
        if name.endswith(_SUFFIX)
    }
    if _OUTPUT not in found or len(found) < 2:
        raise ConfigError(path, key, f"expected {_OUTPUT} and a part of the prompt")
    return found


def _quantiles(path: Path, key: str, value: Any) -> Quantiles:
    try:
        return Quantiles(tuple(map(float, value["q"])), float(value["mean"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(path, key, f"expected mean and rising quantiles q: {error}") from error
