"""What a GPU allows: MPS shares, CUDA IPC, green contexts, graph capture, and its ceilings.

Needs torch, triton and numpy only. Each check runs in a process of its own for a limited time, so
that one failure does not lose the rest. No setting of the card is changed; the MPS daemon is our
own, in a folder of its own, and is stopped. Exit code 1 without a GPU, or where a check failed.

    python bench/gpu/facts.py --markdown bench/gpu/FACTS.md --json bench/results/gpu/facts.json
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import strftime
from typing import Any

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose kernels.py would hide the package
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import torch

from bench.gpu.children import run_child
from bench.harness import Bench, Claim, make_parser

SCRIPT = str(Path(__file__).resolve().parent / "fact.py")
LIMITS_S = {
    "versions": 40,
    "ceilings": 60,
    "graph": 60,
    "ipc": 60,
    "green_contexts": 60,
    "mps": 150,
}
"""Checks in order, and how long each may take."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run every check, print and write what they say; 1 without a GPU or where one failed."""
    parser = make_parser((__doc__ or "").splitlines()[0])
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there")
    bench = Bench(parser, argv)
    there = torch.cuda.is_available()
    answers: dict[str, dict[str, Any]] = {}
    for name, seconds in LIMITS_S.items():
        answers[name] = _answer(name, seconds) if there else {"verdict": "no GPU", "text": ""}
        print(f"{name}: {answers[name]['verdict']}. {answers[name]['text']}", flush=True)
    if there and bench.options.markdown is not None:
        bench.options.markdown.write_text(markdown(answers), encoding="utf-8")
    numbers = answers["ceilings"].get("numbers", {})
    samples = {name: numbers.pop(f"{name}_samples_s", ()) for name in ("copy", "matmul")}
    bench.publish(_claims(answers, numbers) if there else [], samples, facts=answers)
    if not there:
        print("no GPU: torch.cuda.is_available() is false, no check was run", file=sys.stderr)
        return 1
    return 1 if any(answer["verdict"] == "failed" for answer in answers.values()) else 0


def _answer(name: str, seconds: float) -> dict[str, Any]:
    ended = run_child((SCRIPT, name), seconds)
    if ended.failure:
        return {"verdict": "failed", "text": " ".join(ended.failure.split())[-1000:]}
    answer: dict[str, Any] = json.loads(ended.output.splitlines()[-1])
    return answer


def _claims(answers: Mapping[str, Any], ceilings: Mapping[str, float]) -> list[Claim]:
    units = {"copy_bytes_per_s": "B/s", "matmul_flops_per_s": "FLOP/s"}
    measured = [
        Claim(name, ceilings[name], unit) for name, unit in units.items() if name in ceilings
    ]
    verdicts = [answer["verdict"] for answer in answers.values()]
    return [*measured, Claim("checks_failed", verdicts.count("failed"), "checks", 0)]


def markdown(answers: Mapping[str, Mapping[str, Any]]) -> str:
    """The answers as a page."""
    rows = [
        f"| {name} | {answer['verdict']} | {str(answer['text']).replace('|', '/')} |"
        for name, answer in answers.items()
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
