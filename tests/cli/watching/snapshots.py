"""Snapshots as /v1/cluster/live answers, made by the server's own code."""

from collections.abc import Sequence
from typing import Any

from muxcluster.core.request import Slo
from muxcluster.core.served import JobRecord, ModelStats, ServedModel, UnitStats
from muxcluster.http.live.snapshot import models_told, units_told
from muxcluster.http.live.units import UnitHistory
from muxcluster.http.metrics.recent import RecentFigures, Spread

FIGURES = RecentFigures(10, 1, 4, Spread(0.08, 0.3), Spread(0.02, 0.04), 0.9)


def snapshot(
    models: Sequence[ModelStats], links: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    """A unit u-0 with these models, and `links`' other units, which have not reported."""
    links = {"u-0": "up"} if links is None else links
    jobs = tuple(
        JobRecord(i, m.name, "decode", 0, 0.25, 9.0, 10.0, 1, 1) for i, m in enumerate(models)
    )
    report = UnitStats("u-0", 10.0, 1000, 600, tuple(models), jobs)
    history = UnitHistory(lambda: [report], lambda: links)
    history.stats()
    units = units_told(history.units(), {"u-0": {"node": "a", "gpus": [0, 1], "reason": None}})
    served = [ServedModel(m.name, "/m", 99, 99, (0,), Slo(0.2, 0.05)) for m in models]
    figures = {models[0].name: FIGURES} if models else {}
    return {
        "time_s": 0.0,
        "version": "0.1",
        "ready": True,
        "batches": None,
        "events": [],
        "cluster": dict.fromkeys(("healthy", "nodes", "missing_units", "unplaced", "error")),
        "units": units,
        "models": models_told(served, units, figures),
        **more,
    }
