"""The engine on a GPU: correctness, then decode against its roofline, then 256 requests.

Needs torch, triton, numpy and transformers; models have random weights and are made here.
(a) Greedy output of a small model in fp32 is that of Hugging Face's `generate` on the same device.
(b) Decode of Llama-3-8B and Llama-3.2-1B shapes in bf16 through a unit, batch 1, 8 and 64 at 128
and 2,048 tokens, as a share of what copy bandwidth allows: (weights + keys and values read) over
the bandwidth measured in the same run; the same with the model's own modules instead of our fused
kernels; and prompts of 160 to 8,000 tokens until their first token. (c) 256 requests of 100 to
1,024 tokens in and out, all at once, through a unit and through transformers' continuous batching
with what it chooses by itself.
Each part has a process and a time limit of its own. Exit code 1 where something was wrong.

    python bench/gpu/engine.py --json bench/results/gpu/engine.json
    python bench/gpu/engine.py --dry        # tries the script out on the CPU, with tiny models
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

import torch

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose kernels.py would hide the package
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.gpu.running.card import card_of
from bench.gpu.running.ceilings import measure
from bench.gpu.running.clock import Clock
from bench.gpu.running.found import Found
from bench.gpu.running.isolated import Group, run_group
from bench.gpu.running.progress import Progress, parts_parser
from bench.harness import Bench, Claim

SCRIPT = Path(__file__).resolve().parent / "engine_parts" / "part.py"
# In this order, what is worth most first; each for so long at most.
PARTS_S: Mapping[str, float] = {
    "equal": 70.0,
    "equal.stock": 60.0,
    "decode.8b": 100.0,
    "prefill.8b": 70.0,
    "stock.8b": 80.0,
    "serve.8b.muxcluster": 80.0,
    "serve.8b.transformers": 100.0,
    "decode.1b": 70.0,
    "serve.1b.muxcluster": 60.0,
    "serve.1b.transformers": 80.0,
}
LEAST_S = 25.0  # A part with less time than that would not get beyond loading its model
IN_ALL_S = 455.0  # No part runs beyond this, so that one call takes less than eight minutes
DRY_S = 400.0
ROOFLINE_GOAL, TIMES_GOAL = 0.75, 2.0
# Of Llama-3-8B on an H100, by prompt tokens: about what vLLM needs.
PREFILL_GOALS_MS = {8000: 210.0, 160: 6.5}


def main(argv: Sequence[str] | None = None) -> int:
    """Run all parts and publish; 1 where something is wrong."""
    bench = Bench(_parser(), argv)
    options = bench.options
    dry = options.dry
    if not dry and not torch.cuda.is_available():
        print("no GPU: nothing was run (--dry tries the script out)", file=sys.stderr)
        return 1
    ends_at = monotonic() + (options.budget or (DRY_S if dry else IN_ALL_S))
    device = torch.device("cpu" if dry else "cuda")
    card = card_of(device)
    quick = [name for name in PARTS_S if "8b" not in name]
    names = quick if options.quick else list(PARTS_S)
    setting = {"bench": "engine", "dry": dry, "card": card["name"]}
    progress = Progress(bench, names, setting, claims_of)
    left = progress.left(options.only or names)
    ceilings, timings = measure(Clock(device, 2 if dry else 10), device, tiny=dry)
    progress.sample(**{name: timing.samples_s for name, timing in timings.items()})
    progress.about = {"card": card, "ceilings": asdict(ceilings)}
    print(f"{card['name']}: copy {ceilings.copy_bytes_per_s / 1e12:.3f} TB/s", flush=True)
    if not dry:
        torch.cuda.empty_cache()
    shared = {
        "device": device.type,
        "seed": options.seed,
        "repeats": 2,
        "ceilings": asdict(ceilings),
        "tiny": dry,
    }
    groups = [Group((name,), PARTS_S[name], LEAST_S) for name in left]
    if dry:
        # Starting a process takes longer than most dry parts.
        groups = [Group(tuple(names), DRY_S) for names in (left[:1], left[1:]) if names]
    for group in groups:
        progress.add(run_group(SCRIPT, group, shared, ends_at))
    return progress.publish()


def _parser() -> argparse.ArgumentParser:
    parser = parts_parser((__doc__ or "").splitlines()[0])
    parser.add_argument("--dry", action="store_true", help="on the CPU, tiny models, no claims")
    parser.add_argument("--only", nargs="+", metavar="PART", choices=tuple(PARTS_S))
    return parser


def claims_of(found: Found, setting: Mapping[str, Any]) -> list[Claim]:
    """Only of what was reached; nothing is said of speed on a CPU."""
    right = len(found.checks) - len(found.wrong)
    made = [Claim("greedy_requests_equal", right, "requests", len(found.checks))]
    if setting["dry"]:
        return made
    rows = {row["case"]: row for row in found.rows}
    for batch in (64, 1):
        fused, stock = (
            rows.get(f"decode {name}, batch {batch}, 128 tokens", {}).get("tokens_per_s")
            for name in ("8b", "8b stock")
        )
        if fused and stock:
            made.append(Claim(f"fused_over_stock_at_{batch}", round(fused / stock, 3), "x", 1.0))
    for tokens, goal_ms in PREFILL_GOALS_MS.items():
        row = rows.get(f"prefill 8b, {tokens} tokens")
        if row is not None:
            name = f"prefill_{tokens}_ms"
            made.append(Claim(name, round(row["ms"], 2), "ms", goal_ms))
    for size, ending in (("8b", ""), ("1b", "_1b")):
        row = rows.get(f"decode {size}, batch 64, 2048 tokens")
        if row is not None:
            share = round(row["share_of_roofline"], 4)
            made.append(Claim(f"decode_of_roofline_at_64{ending}", share, "share", ROOFLINE_GOAL))
        mine, other = (
            rows.get(f"serve {size}, {side}", {}).get("tokens_per_s")
            for side in ("muxcluster", "transformers")
        )
        if mine and other:
            name = f"tokens_per_s_over_transformers{ending}"
            made.append(Claim(name, round(mine / other, 3), "x", TIMES_GOAL))
    return made


if __name__ == "__main__":
    sys.exit(main())
