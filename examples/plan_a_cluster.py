"""Which models share which GPUs, and what a larger cluster would change: no GPU needed.

python examples/plan_a_cluster.py [muxcluster.yaml]
"""

import sys
from pathlib import Path

from muxcluster import Plan, load_config, plan

SMALL = Path(__file__).with_name("small.yaml")


def show(found: Plan) -> None:
    """Print the units of a plan and how good it is."""
    for unit in found.units:
        gpus = ", ".join(map(str, unit.gpus))
        print(f"{unit.id}: GPU {gpus} of {unit.node}, tensor parallel {unit.tp}")
        for model in unit.models:
            print(f"  {model.name}: {model.throughput:.2f} req/s at batch {model.batch:.1f}")
    bound = "unknown" if found.bound is None else f"{found.bound:.2f}"
    print(f"{found.objective}: {found.score:.2f}; no plan has more than {bound}")


def main() -> None:
    """Plan for all GPUs, then for as few as possible; keep the first as a file."""
    config = load_config(sys.argv[1] if len(sys.argv) > 1 else SMALL)
    found = plan(config)
    show(found)
    Path("plan.json").write_text(found.to_json(), encoding="utf-8")
    fewest = plan(config, objective="fewest-gpus")
    print(f"GPUs needed: {sum(len(unit.gpus) for unit in fewest.units)}")


if __name__ == "__main__":
    main()
