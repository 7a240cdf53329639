"""Which processes do without torch: it costs seconds of a start, and some 400 MB while they run.

Units with green contexts are not among them: their workers are threads.
"""

import subprocess
import sys

import pytest

PROCESSES = {
    "unit": "muxcluster.cluster.units.actor",
    "ranks": "muxcluster.engine.parallel.executor",
    "residency": "muxcluster.engine.residency.executor",
    "MPS": "muxcluster.engine.gpu.mps.launcher",
    "controller": "muxcluster.cluster.control.controller",
    "ingress": "muxcluster.cluster.ingress.ingress",
    "command": "muxcluster.cli.server.launch",
    "renderer": "muxcluster.text.rendering.worker",
    "planning": "muxcluster.offline.process.worker",
}


@pytest.mark.parametrize("module", PROCESSES.values(), ids=PROCESSES)
def test_imports_no_torch(module: str) -> None:
    heavy = "{'torch', 'transformers', 'scipy.optimize'} & set(sys.modules)"
    code = f"import sys, {module}; print(*sorted({heavy}))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.split() == []
