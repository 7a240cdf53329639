"""Checks that torch allocates what CUDA IPC can export: plain cudaMalloc."""

# A module of its own, because the unit's process imports it and must not import torch.

from collections.abc import Mapping, Sequence
from typing import Any

from muxcluster.core.errors import EngineFailure
from muxcluster.engine.gpu.refusals import NOT_PLAIN_MEMORY

_CONFIGURATIONS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def check_configuration(environment: Mapping[str, str]) -> None:
    """Raise EngineFailure if torch is configured to allocate what CUDA IPC cannot export."""
    for name in _CONFIGURATIONS:
        value = environment.get(name, "")
        wanted = value.replace(" ", "").lower()
        if "expandable_segments:true" in wanted or "backend:cudamallocasync" in wanted:
            raise EngineFailure(NOT_PLAIN_MEMORY.format(what=f"{name}={value}"))


def check_segments(segments: Sequence[Mapping[str, Any]]) -> None:
    """Raise EngineFailure if a segment of torch.cuda.memory_snapshot() is expandable."""
    if any(segment.get("is_expandable") for segment in segments):
        raise EngineFailure(NOT_PLAIN_MEMORY.format(what="an expandable segment"))
