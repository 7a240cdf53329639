"""One check of bench/gpu/facts.py in a process of its own: `fact.py NAME`, its answer as JSON."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose kernels.py would hide the package
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.gpu import facts_card, facts_green, facts_ipc, facts_mps
from bench.gpu.answer import Answer

CHECKS: dict[str, Callable[[], Answer]] = {
    **facts_card.CHECKS,
    **facts_ipc.CHECKS,
    **facts_green.CHECKS,
    **facts_mps.CHECKS,
}

if __name__ == "__main__":
    print(json.dumps(asdict(CHECKS[sys.argv[1]]())))
