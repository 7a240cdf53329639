"""What a trace does to three ways of serving the same models: no GPU needed.

    python examples/simulate_a_trace.py [TRACE [muxcluster.yaml]]

TRACE: muxcluster's own JSON lines, or a trace of Azure or Mooncake. Without one, a burst for one of
four models is written and simulated.
"""

import json
import sys
from pathlib import Path

from muxcluster import load_config, simulate

SMALL = Path(__file__).with_name("small.yaml")
SYSTEMS = ("muxserve", "muxserve:quotas=off", "temporal")
SECONDS = 60.0


def write_burst(path: Path) -> Path:
    """Write a trace: a steady stream for one model, and a burst for another in its middle."""
    steady = [(0.5 * i, "chat-8b", 200, 100) for i in range(int(2 * SECONDS))]
    burst = [(20.0 + 0.1 * i, "rare-14b", 400, 150) for i in range(100)]
    lines = [{"muxcluster_workload": 1, "note": "a burst for an unpopular model"}]
    lines += [
        {"time_s": time_s, "id": f"r{i}", "model": model, "prompt_tokens": p, "output_tokens": o}
        for i, (time_s, model, p, o) in enumerate(sorted([*steady, *burst]))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def main() -> None:
    """Simulate the trace and print a line a system."""
    trace = Path(sys.argv[1]) if len(sys.argv) > 1 else write_burst(Path("burst.jsonl"))
    config = load_config(sys.argv[2] if len(sys.argv) > 2 else SMALL)
    for report in simulate(config, systems=SYSTEMS, trace=trace, duration_s=SECONDS):
        total = report.total
        print(
            f"{report.system}: {total.requests_per_s:.2f} req/s, "
            f"TTFT p99 {total.ttft.p99:.2f} s, TPOT p99 {total.tpot.p99:.3f} s, "
            f"within SLO x8 {total.attainment['8']:.0%}"
        )


if __name__ == "__main__":
    main()
