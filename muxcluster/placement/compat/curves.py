"""The reference planner's latency curves, read from its profile of LLaMA on A100-80GB GPUs.

As ESTIMATOR.md under "Latency curves" describes them, quirks included: so that scores compare.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from muxcluster.placement.compat.errors import CompatError
from muxcluster.placement.compat.facts import LARGEST_SOLO_SM

PROMPT_TOKENS = 161
OUTPUT_TOKENS = 337  # Lengths of every sequence
FULL_SM = 100  # SM % of every prefill


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of a prefill job and of a decode step at each of `batches`, ascending sequences."""

    batches: tuple[int, ...]
    prefill_s: tuple[float, ...]
    decode_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Curves:
    """The latency curves of a profile."""

    # Model name → tp → decode SM %, each ascending → curve
    by_model: Mapping[str, Mapping[int, Mapping[int, Curve]]]


def read_curves(path: Path) -> Curves:
    """The curves of `llama_a100_profile.json` or a file like it.

    Its form: model → tp → SM % → batch → tokens → {"prefill", "decoding"} in ms, negative where
    not measured. Raises OSError, CompatError.
    """
    try:
        raw = json.loads(path.read_bytes())
        by_model = {name: _by_tp(cells) for name, cells in raw.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        form = "model -> tp -> SM % -> batch -> tokens -> {prefill, decoding} in ms"
        raise CompatError(f"{path} is not a profile of {form}: {error!r}") from error
    return Curves(by_model)


def _by_tp(cells: Mapping[str, Any]) -> dict[int, dict[int, Curve]]:
    return {int(tp): _by_share(cells[tp]) for tp in sorted(cells, key=int)}


def _by_share(cells: Mapping[str, Any]) -> dict[int, Curve]:
    prefill = [_prefill_ms(row) for row in cells[str(FULL_SM)].values()]
    measured = [ms for ms in prefill if ms is not None]
    curves = {int(share): _curve(cells[share], measured) for share in sorted(cells, key=int)}
    if min(curves) > LARGEST_SOLO_SM:
        raise ValueError(f"no SM % up to {LARGEST_SOLO_SM} among {sorted(curves)}")
    return curves


def _curve(rows: Mapping[str, Any], prefill_ms: list[float]) -> Curve:
    """Pair prefill and decode cells by position, as the reference does. Batches beyond the last
    prefill are left out: no cache holds so many sequences."""
    decode = [(int(batch), ms) for batch, row in rows.items() if (ms := _decode_ms(row))]
    pairs = list(zip(decode, prefill_ms, strict=False))
    batches = tuple(batch for (batch, _), _ in pairs)
    if len(batches) < 2 or list(batches) != sorted(set(batches)):
        raise ValueError(f"batches {batches} are not two or more, ascending")
    return Curve(
        batches, tuple(ms / 1e3 for _, ms in pairs), tuple(ms / 1e3 for (_, ms), _ in pairs)
    )


def _prefill_ms(row: Mapping[str, Any]) -> float | None:
    walked = _walked(row, "prefill", PROMPT_TOKENS)
    return walked[-1] if walked else None


def _decode_ms(row: Mapping[str, Any]) -> float | None:
    """Mean of running means."""
    walked = _walked(row, "decoding", OUTPUT_TOKENS)
    means = [total / count for count, total in enumerate(accumulate(walked), start=1)]
    return sum(means) / len(means) if means else None


def _walked(row: Mapping[str, Any], phase: str, limit: int) -> list[float]:
    """Measured cells in the file's order, up to and including the first longer than `limit`."""
    walked = []
    for length, cell in row.items():
        if cell[phase] >= 0:
            walked.append(float(cell[phase]))
            if int(length) > limit:
                break
    return walked
