"""Real traces: Azure's conversations beside ServeGen's offline batches, under BROS's systems.

Interactive: the conversation trace from its beginning, as it came and faster. Batch: waves of 256
requests drawn from the lengths of an offline slice, "generation" (d), "scoring" (e) or all four;
a and b do not tell their output lengths, of which 128 tokens are assumed. Targets as in BROS: 0.4 s
to the first token, 0.2 s for each other one. On GPUs of 40 GB: with 80 GB nobody lacks memory, and
even `fcfs` serves nearly all in time. Needs the folder of real traces.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np

sys.path.pop(0)  # the script's folder
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.harness import Bench, Claim, make_parser
from bench.hybrid.picture import draw
from bench.hybrid.simulated.claims import apart_claims, claims_of
from bench.hybrid.simulated.running import Build, Cell, Runner
from bench.hybrid.simulated.setups import (
    APART_ENTRY,
    ENTRIES,
    OURS,
    Entry,
    Point,
    Run,
    Setup,
    assembled,
    problem_of,
)
from bench.hybrid.simulated.table import samples_of, show
from bench.traces.servegen_offline import read_servegen_offline
from muxcluster.sim.cases.case import Case
from muxcluster.sim.cases.sweep import Cache
from muxcluster.sim.demand.loads import Trace
from muxcluster.sim.demand.waves import Waves
from muxcluster.workload.files.azure import read_azure
from muxcluster.workload.lengths import Pairs
from muxcluster.workload.summary import summarise

SETUPS: Mapping[str, Setup] = {
    "llama-3-8b": Setup("llama-3-8b", "A100-40GB", 1, 8192),
    # weights leave memory for 16,000 tokens
    "qwen2.5-14b": Setup("qwen2.5-14b", "A100-40GB", 1, 8192),
}
SLICES: Mapping[str, Sequence[str]] = {"generation": "d", "scoring": "e", "all": "abde"}
_CONVERSATIONS = Path("azure_llm_2023") / "AzureLLMInferenceTrace_conv.first30min.csv"
_ASSUMED_OUTPUT = 128
SPEEDS: Mapping[str, Sequence[float]] = {
    "llama-3-8b": (0.5, 0.75, 1.0, 1.25),
    "qwen2.5-14b": (0.1, 0.2, 0.3, 0.4),
}


def batch_lengths(data: Path, name: str) -> Pairs:
    """Pairs of the slices of that name. Raises ConfigError where a file is missing or malformed."""
    rows = [
        (arrival.prompt_tokens, arrival.output_tokens)
        for letter in SLICES[name]
        for path in sorted((data / "servegen_offline").glob(f"trace_{letter}.*.jsonl"))
        for arrival in read_servegen_offline(path, "batch", _ASSUMED_OUTPUT)
    ]
    prompts, outputs = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    return Pairs(prompts, outputs)


def builder(data: Path) -> Build:
    """What a point means: its lengths name a slice, its rate tells how much faster the trace is."""
    path = data / _CONVERSATIONS
    digest = sha256(path.read_bytes()).hexdigest()
    (found,) = summarise(read_azure(path, "trace"))
    means = found.prompt_tokens.mean, found.output_tokens.mean
    base_per_s = base_rate(data)
    lengths = {name: batch_lengths(data, name) for name in SLICES}

    def build(point: Point, entry: Entry, seed: int) -> Case:
        setup, rate = SETUPS[point.setup], point.rate_per_s
        load = Trace(path, "azure", ((setup.shape, rate),), rate / base_per_s, digest)
        waves = Waves(setup.shape, point.wave, lengths[point.lengths], point.seconds, seed)
        return assembled(
            problem_of(setup, rate, means),
            load,
            (waves,) if point.has_batch else (),
            entry,
            Run(point.seconds, seed, rate),
        )

    return build


def base_rate(data: Path) -> float:
    """Conversations/s of the whole trace."""
    times = [arrival.time_s for arrival in read_azure(data / _CONVERSATIONS, "trace")]
    return len(times) / times[-1]


def points_of(
    data: Path,
    setups: Sequence[str],
    seconds: float,
    speeds: Mapping[str, Sequence[float]] = SPEEDS,
    *,
    is_quick: bool,
) -> list[Point]:
    """Every setup at every speed beside every slice."""
    base_per_s = base_rate(data)
    return [
        Point(setup, name, round(speed * base_per_s, 3), seconds)
        for setup in setups
        for name in (list(SLICES)[:1] if is_quick else SLICES)
        for speed in (speeds[setup][1:3] if is_quick else speeds[setup])
    ]


def main() -> None:
    """Simulate, compare, publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, help="virtual ones a case (10; 1 with --quick)")
    parser.add_argument("--seeds", type=int, help="repeats (3; 1 with --quick)")
    parser.add_argument("--setups", default=",".join(SETUPS), help="of %(default)s")
    parser.add_argument("--speeds", help="of the trace, by default those that a setup can bear")
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep results, to go on later")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the first setup")
    bench = Bench(parser)
    options = bench.options
    quick, data = options.quick, bench.data().resolve()
    seconds = 60.0 * (options.minutes or (1 if quick else 10))
    seeds = tuple(range(options.seed, options.seed + (options.seeds or (1 if quick else 3))))
    setups = options.setups.split(",")[: 1 if quick else None]
    speeds = SPEEDS
    if options.speeds is not None:
        speeds = dict.fromkeys(setups, tuple(map(float, options.speeds.split(","))))
    points = points_of(data, setups, seconds, speeds, is_quick=quick)
    runner = Runner(Cache(options.cache), options.processes, seeds)
    cells = runner.cells(points, (*ENTRIES, APART_ENTRY), builder(data))
    show(cells)
    rows = [cell.row() for cell in cells]
    if options.plot is not None:
        first = [row for row in rows if row["setup"] == setups[0]]
        draw([{**row, "setup": row["lengths"]} for row in first], options.plot)
    bench.publish(
        _claims(cells),
        samples_of(cells),
        virtual_s=seconds,
        num_seeds=len(seeds),
        ours=OURS,
        cells=rows,
    )


def _claims(cells: Sequence[Cell]) -> list[Claim]:
    """Of all, then of each slice."""
    claims = claims_of(cells)
    for name in dict.fromkeys(cell.point.lengths for cell in cells):
        mine = [cell for cell in cells if cell.point.lengths == name]
        found = [*claims_of(mine), *apart_claims(mine)]
        claims += [replace(each, name=f"{each.name}_{name}", baseline=None) for each in found]
    return claims


if __name__ == "__main__":
    main()
