"""Capabilities of a GPU: MPS shares, CUDA IPC, green contexts, graph capture, ceilings.

Needs torch, triton and numpy only. Each check runs in a process of its own for a limited time, so
that one failure does not lose the rest. No setting of the card is changed; the MPS daemon is our
own, in a folder of its own, and is stopped. Exit code 1 without a GPU, or where a check failed.

    python bench/gpu/facts.py --markdown bench/gpu/FACTS.md --json bench/results/gpu/facts.json
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic, strftime
from typing import Any

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose kernels.py would hide the package
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import torch

from bench.gpu.fact_checks.answer import last_answer
from bench.gpu.running.card import card_of
from bench.gpu.running.children import run_child
from bench.gpu.running.found import FAILED, NO_TIME, NO_TIME_LEFT, OK, Found, Part
from bench.gpu.running.progress import Progress, parts_parser
from bench.harness import Bench, Claim

SCRIPT = str(Path(__file__).resolve().parent / "fact_checks" / "fact.py")
# Checks in order, and how long each may take.
LIMITS_S = {
    "versions": 40,
    "ceilings": 60,
    "graph": 60,
    "ipc": 60,
    "green_contexts": 60,
    "mps": 180,
    "ranks_nccl": 60,
    "ranks_gloo": 120,
}
DRY = ("versions", "ceilings", "ipc", "ranks_nccl")  # What can be tried out on a CPU
_DRY_TIMES = 3  # A busy machine without a GPU may take so many times as long
IN_ALL_S = 455.0
_LEAST_S = 10.0
_SAMPLES = ("copy_samples_s", "matmul_samples_s")  # Numbers of a check that are single measurements


def main(argv: Sequence[str] | None = None) -> int:
    """Run every check, print and write what they say; 1 without a GPU or where one failed."""
    bench = Bench(_parser(), argv)
    options = bench.options
    dry = options.dry
    if not dry and not torch.cuda.is_available():
        print("no GPU: no check was run (--dry tries the script out)", file=sys.stderr)
        return 1
    ends_at = monotonic() + (options.budget or IN_ALL_S)
    card = card_of(torch.device("cpu" if dry else "cuda"))
    names = [name for name in LIMITS_S if not dry or name in DRY]
    setting = {"bench": "facts", "dry": dry, "card": card["name"]}
    progress = Progress(bench, names, setting, claims_of)
    progress.about = {"card": card}
    for name in progress.left([name for name in names if name in (options.only or names)]):
        limit_s = LIMITS_S[name] * (_DRY_TIMES if dry else 1)
        progress.add(_found(name, min(limit_s, ends_at - monotonic()), dry=dry))
        if options.markdown is not None:
            options.markdown.write_text(markdown(progress.found.rows), encoding="utf-8")
    return progress.publish()


def _parser() -> argparse.ArgumentParser:
    parser = parts_parser((__doc__ or "").splitlines()[0])
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there")
    parser.add_argument("--dry", action="store_true", help="on the CPU, what can be tried there")
    parser.add_argument("--only", nargs="+", metavar="CHECK", choices=tuple(LIMITS_S))
    return parser


def _found(name: str, seconds: float, *, dry: bool) -> Found:
    """The check as a part of one row: its verdict, text and numbers."""
    if seconds < _LEAST_S:
        return Found({name: Part(name, NO_TIME, reason=NO_TIME_LEFT)})
    start_s = monotonic()
    ended = run_child((SCRIPT, name, *(["cpu"] if dry else [])), seconds)
    took_s = monotonic() - start_s
    row = {"case": name, **last_answer(ended.output, ended.failure)}
    print(f"{name}: {row['verdict']}. {row['text']}", flush=True)
    if row["verdict"] == FAILED:
        print(ended.errors, file=sys.stderr, flush=True)
        return Found({name: Part(name, FAILED, took_s, row["text"], rows=(row,))})
    samples = {key: row["numbers"].pop(key) for key in _SAMPLES if key in row["numbers"]}
    return Found({name: Part(name, OK, took_s, rows=(row,), samples=samples)})


def claims_of(found: Found, setting: Mapping[str, Any]) -> list[Claim]:
    """The ceilings, which shares of SMs are real (1: yes), and how many checks failed."""
    rows = {row["case"]: row for row in found.rows}
    failed = [row for row in found.rows if row["verdict"] == FAILED]
    made = [Claim("checks_failed", len(failed), "checks", 0)]
    if setting["dry"]:
        return made
    numbers = rows.get("ceilings", {}).get("numbers", {})
    for name, unit in (("copy_bytes_per_s", "B/s"), ("matmul_flops_per_s", "FLOP/s")):
        if name in numbers:
            made.append(Claim(name, numbers[name], unit))
    for name in ("green_contexts", "mps"):
        if name in rows:
            made.append(Claim(name, float(rows[name]["verdict"] == "yes"), "yes or no", 1))
    return made


def markdown(facts: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a page."""
    rows = [
        f"| {fact['case']} | {fact['verdict']} | {str(fact['text']).replace('|', '/')} |"
        for fact in facts
    ]
    head = (
        "# What this GPU allows",
        "",
        f"Written by `bench/gpu/facts.py` on {strftime('%Y-%m-%d')}.",
        "",
        "| check | answer | in words |",
        "|---|---|---|",
    )
    return "\n".join((*head, *rows)) + "\n"


if __name__ == "__main__":
    sys.exit(main())
