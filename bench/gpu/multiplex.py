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

from bench.gpu.isolated import Found, Group, gathered, run_group
from bench.gpu.multiplex_predict import predicted_per_s
from bench.gpu.multiplex_setup import cost_of, site_of, systems_of, work_of
from bench.gpu.multiplex_systems import shared_unit, static_units
from bench.gpu.multiplex_work import capacity_per_s, static_shares
from bench.harness import Bench, Claim, make_parser
from placement.cost import Profile

SCRIPT = Path(__file__).resolve().parent / "multiplex_part.py"
SIZES = ("1b", "3b", "8b", "1b")
DRY_SIZES = ("1b", "8b")
"""Most popular first."""
ALPHA = 1.3
OVERLOAD = 1.3
"""Times what taking turns could serve, by the profile."""
DURATION_S, DRAIN_S = 20.0, 5.0
DRY_DURATION_S, DRY_DRAIN_S, DRY_RATE = 2.0, 30.0, 5.0
DRY_LENGTHS = 0.05
"""Times ShareGPT's."""
PROFILE_S, SYSTEM_S = 130.0, 110.0
DRY_S = 350.0
IN_ALL_S = 455.0
"""No part runs beyond this, so that one call takes less than eight minutes."""
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
    found, given = _run(options, monotonic() + (DRY_S if options.dry else IN_ALL_S))
    return _publish(bench, found, given, tiny=options.dry)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser((__doc__ or "").splitlines()[0])
    parser.add_argument("--dry", action="store_true", help="on the CPU, tiny models, no claims")
    parser.add_argument("--sizes", nargs="+", choices=("1b", "3b", "8b"), help="popular first")
    parser.add_argument("--rate", type=float, metavar="N", help="requests/s in all")
    names = sorted({each.name for tiny in (False, True) for each in systems_of(tiny=tiny)})
    parser.add_argument("--only", nargs="+", metavar="SYSTEM", choices=names)
    parser.add_argument(
        "--predict", type=Path, metavar="RECORD", help="only predict, for an earlier record"
    )
    return parser


def _run(options: argparse.Namespace, ends_at: float) -> tuple[Found, dict[str, Any]]:
    """What all parts kept, and what they were given: the profile first, by which the rest goes."""
    tiny = options.dry
    given: dict[str, Any] = {
        "sizes": options.sizes or (DRY_SIZES if tiny else SIZES),
        "alpha": ALPHA,
        "rate_per_s": 1.0,
        "duration_s": DRY_DURATION_S if tiny else DURATION_S / (2 if options.quick else 1),
        "drain_s": DRY_DRAIN_S if tiny else DRAIN_S,
        "length_scale": DRY_LENGTHS if tiny else 1.0,
        "work_seed": options.seed,
    }
    shared = {
        "device": "cpu" if tiny else "cuda",
        "seed": options.seed,
        "repeats": 1,
        "ceilings": {"copy_bytes_per_s": 1.0, "matmul_flops_per_s": 1.0},
        "tiny": tiny,
    }

    def part(names: Sequence[str], seconds: float) -> Found:
        group = Group(tuple(names), seconds)
        return run_group(SCRIPT, group, {**shared, "given": given}, ends_at)

    done = [part(["profile"], DRY_S if tiny else PROFILE_S)]
    if not done[0].rows:
        return done[0], given
    given["profile"] = done[0].rows[0]["profile"]
    _load(given, options.rate, tiny=tiny)
    names = [each.name for each in systems_of(tiny=tiny)]
    names = [name for name in names if not options.only or name in options.only]
    groups = [names] if tiny else [[name] for name in names]
    done += [part(group, DRY_S if tiny else SYSTEM_S) for group in groups]
    return gathered(done), given


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


def claims(rows: Sequence[Mapping[str, Any]], predicted: Mapping[str, float]) -> list[Claim]:
    """Only of systems that were measured."""
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
    errors = [abs(predicted[name] / served[name] - 1) for name in predicted if served[name]]
    if errors:
        made.append(Claim("simulated_error_max", round(max(errors), 4), "share", ERROR_GOAL))
    return made


def _publish(bench: Bench, found: Found, given: Mapping[str, Any], *, tiny: bool) -> int:
    failures = dict(found.failures)
    predicted: dict[str, float] = {}
    if "profile" in given:
        try:
            predicted = predictions(found.rows, given, tiny=tiny)
        except Exception as error:  # noqa: BLE001 - what was measured is kept whatever this does
            failures["prediction"] = f"{type(error).__name__}: {error}; --predict does it later"
    for row in found.rows:
        if "requests_per_s" in row:
            row["predicted_requests_per_s"] = predicted.get(row["case"])
            print(line(row))
    for name, failure in failures.items():
        print(f"FAILED {name}: {failure}")
    bench.publish(
        [] if tiny else claims(found.rows, predicted),
        found.samples,
        given=given,
        rows=found.rows,
        failures=failures,
        dry=tiny,
    )
    return 1 if failures else 0


def _predict_later(bench: Bench, path: Path) -> int:
    """The claims of an earlier record, with predictions made now."""
    record = json.loads(path.read_text(encoding="utf-8"))
    found = Found(rows=record["rows"], failures=record["failures"], samples=record["samples"])
    found.failures.pop("prediction", None)
    return _publish(bench, found, record["given"], tiny=record["dry"])


def line(row: Mapping[str, Any]) -> str:
    """A system in words."""
    predicted = row["predicted_requests_per_s"]
    said = "not predicted" if predicted is None else f"predicted {predicted:.2f}"
    latency = row["latency_p99_s"]
    p99 = "none ended" if latency is None else f"p99 {latency:.2f} s"
    return (
        f"{row['case']:<15} {row['requests_per_s']:>7.2f} requests/s ({said}), "
        f"{row['output_tokens_per_s']:>8.0f} tokens/s, {row['slo_attainment']:.1%} in time, {p99}"
    )


if __name__ == "__main__":
    sys.exit(main())
