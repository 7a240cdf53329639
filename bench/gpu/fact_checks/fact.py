"""One check of bench/gpu/facts.py in a process of its own: `fact.py NAME`, its answer as JSON.

`fact.py NAME cpu` tries out the checks that can be tried without a GPU.

A check that finds out several things prints its answer after each, a line each; the last counts,
though the process may have failed afterwards.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose kernels.py would hide the package
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bench.gpu.fact_checks import card, green, ipc, mps, ranks
from bench.gpu.fact_checks.answer import Answer
from bench.gpu.running.children import die_with_parent

CHECKS: dict[str, Callable[..., Answer | Iterator[Answer]]] = {
    **card.CHECKS,
    **ipc.CHECKS,
    **green.CHECKS,
    **mps.CHECKS,
    **ranks.CHECKS,
}


def main(name: str, *device: str) -> None:
    """Print the answers of the check `name` as they are found."""
    found = CHECKS[name](*device)
    for answer in (found,) if isinstance(found, Answer) else found:
        print(json.dumps(asdict(answer)), flush=True)


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
