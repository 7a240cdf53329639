"""Small configurations for `muxcluster place`: shapes only, A100 nodes."""

from collections.abc import Callable
from pathlib import Path

import pytest

SMALL = """
models:
  - {name: chat, shape: llama-2-7b, rate: RATE, max_model_len: 2048, slo: {ttft: 0.4, tpot: 0.1}}
  - {name: code, shape: llama-2-13b, rate: 1.0, max_model_len: 2048}
  - {name: rare, shape: opt-6.7b, rate: 0.05}
cluster: {nodes: [{name: a, gpus: GPUS, gpu: A100-80GB}]}
"""


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., str]:
    """(gpus, rate of chat, more lines) -> path of a file of three models."""

    def make(gpus: int = 2, rate: float = 4.0, more: str = "", name: str = "small.yaml") -> str:
        path = tmp_path / name
        path.write_text(SMALL.replace("RATE", str(rate)).replace("GPUS", str(gpus)) + more)
        return str(path)

    return make
