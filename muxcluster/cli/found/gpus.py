"""The GPUs of this machine, as the driver's own command lists them: no torch is needed."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muxcluster.placement.hardware import gpu_named

_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader")
_TIMEOUT_S = 20.0
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class SeenGpus:
    """GPUs of one kind that a node can be made of, or why there are none."""

    kind: str = ""  # our name of it; "" without GPUs
    count: int = 0
    note: str = ""  # why GPUs that are there are not counted

    def nodes(self) -> list[dict[str, Any]]:
        """Return `cluster.nodes` of a configuration: the GPUs, or else this machine's cores."""
        if not self.count:
            return [{"name": "local", "gpu": "cpu"}]
        return [{"name": "local", "gpus": self.count, "gpu": self.kind}]


def seen_gpus(environment: Mapping[str, str] = os.environ) -> SeenGpus:
    """Return the GPUs that this process may use."""
    rows = _visible(_listed(), environment.get(_VISIBLE))
    names = sorted({name for _, _, name in rows})
    if not names:
        return SeenGpus()
    if len(names) > 1:
        return SeenGpus(note=f"GPUs of several kinds ({', '.join(names)}) are not one node")
    try:
        return SeenGpus(gpu_named(names[0]).name, len(rows))
    except ValueError as error:
        return SeenGpus(note=str(error))


def _listed() -> list[tuple[str, str, str]]:
    """Return (index, UUID, name) of each GPU; none where there is no driver."""
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode:
        return []
    rows = [line.split(",", 2) for line in done.stdout.splitlines() if line.count(",") >= 2]
    return [(index.strip(), uuid.strip(), name.strip()) for index, uuid, name in rows]


def _visible(rows: list[tuple[str, str, str]], visible: str | None) -> list[tuple[str, str, str]]:
    """Return the rows that CUDA_VISIBLE_DEVICES names: by index or the beginning of a UUID."""
    if visible is None:
        return rows
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return [row for row in rows if any(row[0] == name or row[1].startswith(name) for name in names)]
