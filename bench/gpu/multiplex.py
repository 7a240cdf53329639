"""Several models on one GPU: multiplexed, in turns, and on fixed parts of the SMs.

Needs torch, triton, numpy, scipy and transformers; models have random weights and are made here.
First a small profile (jobs alone and side by side, by SM share). By it goes the load: Poisson
arrivals, popularity by a power law, lengths about ShareGPT's, so many that taking turns cannot
serve them. Then each system in a process of its own, on the same requests: ADBS on MPS partitions
and on green contexts, and as it stops sharing where that does not pay; temporal; a static split of
SMs and KV pool; mixed jobs. What cannot be had is skipped, and the record says why. Last, what the
simulator predicts for each from that profile. Exit code 1 where a part failed.

    python bench/gpu/multiplex.py --json bench/results/gpu/multiplex.json
    python bench/gpu/multiplex.py --dry      # tries the script out on the CPU, with tiny models
    python bench/gpu/multiplex.py --predict bench/results/gpu/multiplex.json     # only that, later
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import torch

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose kernels.py would hide the package
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.gpu.multiplexing.predict import predicted_per_s
from bench.gpu.multiplexing.setup import cost_of, site_of, systems_of, work_of
from bench.gpu.multiplexing.systems import shared_unit, static_units
from bench.gpu.multiplexing.work import capacity_per_s, static_shares
from bench.gpu.running.card import card_of
from bench.gpu.running.found import Found, from_record
from bench.gpu.running.isolated import Group, run_group
from bench.gpu.running.progress import Progress, parts_parser
from bench.harness import Bench, Claim
from muxcluster.placement.cost import Profile

SCRIPT = Path(__file__).resolve().parent / "multiplexing" / "part.py"
SIZES = ("1b", "3b", "8b", "1b")
DRY_SIZES = ("1b", "8b")  # Most popular first
PROFILE = "profile"
ALPHA = 1.3
OVERLOAD = 1.3  # Times what taking turns could serve, by the profile
DURATION_S, DRAIN_S = 20.0, 5.0
DRY_DURATION_S, DRY_DRAIN_S, DRY_RATE = 2.0, 30.0, 5.0
DRY_LENGTHS = 0.05  # Times ShareGPT's
PROFILE_S = 130.0
SYSTEM_S = {"none": 90.0}
# How long a system may take, by its partition: green contexts and worker processes record the
# graphs of every rung before they serve.
SHARING_S = 180.0
LEAST_S = 50.0  # Of a system: the workload alone takes half of that
DRY_S = 350.0
IN_ALL_S = 455.0  # No part runs beyond this, so that one call takes less than eight minutes
ERROR_GOAL = 0.15
_SHARING = ("adbs-mps", "adbs-green", "adbs-threads")
_STATIC = ("static-mps", "static-green", "static-threads")


def main(argv: Sequence[str] | None = None) -> int:
    """Run all parts, predict and publish; 1 where something failed."""
    bench = Bench(_parser(), argv)
    options = bench.options
    if options.predict is not None:
        return _predict_later(bench, options.predict)
    if not options.dry and not torch.cuda.is_available():
        print("no GPU: nothing was run (--dry tries the script out)", file=sys.stderr)
        return 1
    dry = options.dry
    ends_at = monotonic() + (options.budget or (DRY_S if dry else IN_ALL_S))
    card = card_of(torch.device("cpu" if dry else "cuda"))
    given = _given(options)
    setting = {"bench": "multiplex", "dry": dry, "card": card["name"], "rate": options.rate}
    setting["sizes"] = list(given["sizes"])
    names = [each.name for each in systems_of(tiny=dry)]
    progress = Progress(bench, [PROFILE, *names], setting, claims_of)
    wanted = [name for name in names if name in (options.only or names)]
    _run(progress, progress.left([PROFILE, *wanted]), given, ends_at)
    return _publish(progress)


def _parser() -> argparse.ArgumentParser:
    parser = parts_parser((__doc__ or "").splitlines()[0])
    parser.add_argument("--dry", action="store_true", help="on the CPU, tiny models, no claims")
    parser.add_argument("--sizes", nargs="+", choices=("1b", "3b", "8b"), help="popular first")
    parser.add_argument("--rate", type=float, metavar="N", help="requests/s in all")
    names = sorted({each.name for tiny in (False, True) for each in systems_of(tiny=tiny)})
    parser.add_argument("--only", nargs="+", metavar="SYSTEM", choices=names)
    parser.add_argument(
        "--predict", type=Path, metavar="RECORD", help="only predict, for an earlier record"
    )
    return parser


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """What all parts are told, but for what follows from the profile."""
    tiny = options.dry
    return {
        "sizes": list(options.sizes or (DRY_SIZES if tiny else SIZES)),
        "alpha": ALPHA,
        "rate_per_s": 1.0,
        "duration_s": DRY_DURATION_S if tiny else DURATION_S / (2 if options.quick else 1),
        "drain_s": DRY_DRAIN_S if tiny else DRAIN_S,
        "length_scale": DRY_LENGTHS if tiny else 1.0,
        "work_seed": options.seed,
    }


def _run(progress: Progress, left: Sequence[str], given: dict[str, Any], ends_at: float) -> None:
    """Run the parts that are left: the profile first, by which the load of all others goes.

    Of an earlier run the profile and the load are kept, so that all systems get the same.
    """
    tiny = progress.setting["dry"]
    shared = {
        "device": "cpu" if tiny else "cuda",
        "seed": progress.setting["seed"],
        "repeats": 1,
        "ceilings": {"copy_bytes_per_s": 1.0, "matmul_flops_per_s": 1.0},
        "tiny": tiny,
    }

    def part(names: Sequence[str], seconds: float, least_s: float) -> None:
        group = Group(tuple(names), DRY_S if tiny else seconds, 0.0 if tiny else least_s)
        progress.add(run_group(SCRIPT, group, {**shared, "given": given}, ends_at))

    progress.about = {"given": given, "dry": tiny}
    if PROFILE in left:
        part([PROFILE], PROFILE_S, 0.0)
    rows = [row for row in progress.found.rows if "profile" in row]
    if not rows:
        return
    earlier = progress.earlier.get("given", {})
    if PROFILE not in left and "rate_per_s" in earlier:
        given |= earlier
    else:
        given["profile"] = rows[0]["profile"]
        _load(given, progress.setting["rate"], tiny=tiny)
    systems = [each for each in systems_of(tiny=tiny) if each.name in left]
    # Starting a process takes longer than most dry systems run.
    groups = [systems[:1], systems[1:]] if tiny else [[each] for each in systems]
    for group in filter(None, groups):
        seconds = SYSTEM_S.get(group[0].partition, SHARING_S)
        part([each.name for each in group], seconds, LEAST_S)


def _load(given: dict[str, Any], rate: float | None, *, tiny: bool) -> None:
    """Adds the rate and the static shares, by the profile."""
    cost, work = cost_of(Profile.from_json(given["profile"])), work_of(given, tiny=tiny)
    capacity = capacity_per_s(work.tenants, cost, work.mean_tokens)
    given["capacity_per_s"] = capacity
    given["rate_per_s"] = rate or (DRY_RATE if tiny else OVERLOAD * capacity)
    given["shares"] = dict(static_shares(work.tenants, cost, work.mean_tokens))
    print(
        f"{given['rate_per_s']:.2f} requests/s; taking turns would serve about {capacity:.2f}",
        flush=True,
    )


def predictions(
    rows: Sequence[Mapping[str, Any]], given: Mapping[str, Any], *, tiny: bool
) -> dict[str, float]:
    """Requests/s of each system that was measured."""
    work, site = work_of(given, tiny=tiny), site_of(tiny=tiny)
    cost = cost_of(Profile.from_json(given["profile"]))
    measured = {row["case"] for row in rows if "requests_per_s" in row}
    found = {}
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        for system in systems_of(tiny=tiny):
            if system.name in measured:
                whole = shared_unit(Path(folder), work, site, system)
                units = static_units(whole, given["shares"]) if system.is_static else (whole,)
                until_s = work.duration_s + given["drain_s"]
                found[system.name] = predicted_per_s(units, work, cost, until_s)
    return found


def claims_of(found: Found, setting: Mapping[str, Any]) -> list[Claim]:
    """Only of systems that were measured; nothing is said of a CPU."""
    return [] if setting["dry"] else claims(found.rows)


def claims(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Of rows of systems, with what was predicted of them where it was."""
    predicted = {row["case"]: row.get("predicted_requests_per_s") for row in rows}
    served = {row["case"]: row["requests_per_s"] for row in rows if "requests_per_s" in row}
    shared = [served[name] for name in _SHARING if name in served]
    static = [served[name] for name in _STATIC if name in served]
    made = []
    if shared and served.get("temporal"):
        times = round(max(shared) / served["temporal"], 3)
        made.append(Claim("throughput_over_temporal", times, "x", 1.0))
    if shared and static and max(static) > 0:
        made.append(Claim("throughput_over_static", round(max(shared) / max(static), 3), "x", 1.0))
    if "adbs-auto" in served and served.get("temporal"):
        times = round(served["adbs-auto"] / served["temporal"], 3)
        made.append(Claim("unsharing_over_temporal", times, "x", 1.0))
    errors = [
        abs(predicted[name] / rate - 1)
        for name, rate in served.items()
        if rate and predicted[name] is not None
    ]
    if errors:
        made.append(Claim("simulated_error_max", round(max(errors), 4), "share", ERROR_GOAL))
    return made


def _publish(progress: Progress) -> int:
    """Predict, print a line a system, write the record."""
    rows = progress.found.rows
    if any("requests_per_s" in row for row in rows):
        given, tiny = progress.about["given"], progress.setting["dry"]
        try:
            predicted = predictions(rows, given, tiny=tiny)
        except Exception as error:  # noqa: BLE001 - what was measured is kept whatever this does
            print(f"no prediction, --predict makes it later: {type(error).__name__}: {error}")
            predicted = {}
        for row in rows:
            if "requests_per_s" in row:
                row["predicted_requests_per_s"] = predicted.get(row["case"])
                print(line(row))
    return progress.publish()


def _predict_later(bench: Bench, path: Path) -> int:
    """The claims of an earlier record, with predictions made now."""
    record = json.loads(path.read_text(encoding="utf-8"))
    names = [PROFILE, *(each.name for each in systems_of(tiny=record["dry"]))]
    progress = Progress(bench, names, record["setting"], claims_of)
    progress.found, progress.runs = from_record(record), record["runs"]
    progress.about = {"given": record["given"], "dry": record["dry"]}
    return _publish(progress)


def line(row: Mapping[str, Any]) -> str:
    """A system in words."""
    predicted = row.get("predicted_requests_per_s")
    said = "not predicted" if predicted is None else f"predicted {predicted:.2f}"
    latency = row["latency_p99_s"]
    p99 = "none ended" if latency is None else f"p99 {latency:.2f} s"
    return (
        f"{row['case']:<15} {row['requests_per_s']:>7.2f} requests/s ({said}), "
        f"{row['output_tokens_per_s']:>8.0f} tokens/s, {row['slo_attainment']:.1%} in time, {p99}"
    )


if __name__ == "__main__":
    sys.exit(main())
