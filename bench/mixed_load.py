"""All kinds of tenants in one unit: chats, a hundred adapters, an embedder and a reranker.

The unit, as `muxcluster serve` starts it, holds two Llamas of 56.4 million parameters, 100 adapters
of rank 8 on the first of them, an embedder of the shape of all-MiniLM-L6-v2 and a cross-encoder of
that shape (random weights, fp32). Each class of requests arrives at random (Poisson): chats of both
models, chats of adapters (the n-th has 1/n of the first one's, Zipf), texts to embed, pairs to
score. A chat is in time whose first token came within 0.5 s and whose others took 0.1 s each in the
mean; a text or a pair, that is answered within 0.5 s. The unit is driven in process. All policies
of the scheduler get the same requests, one after another, in an order that turns with every round.

Claims: the smallest share in time of any class at the first load; requests in time of all loads
over the best other policy's; requests that were not answered whole.
"""

import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import shutil

import torch
import yaml
from transformers import AutoConfig, AutoModelForSequenceClassification

from bench.embeddings import SHAPE as ENCODER_SHAPE
from bench.embeddings import make_model as make_embedder
from bench.harness import Bench, Claim, make_parser, percentiles
from bench.online.lora import write_adapters
from bench.serving import SHAPE
from bench.several.asks import (
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    TPOT_S,
    TTFT_S,
    WARM_UP_S,
    Answer,
    Ask,
    poisson,
    random_tokens,
)
from bench.several.players import Side, in_turn, one_unit
from muxcluster.demo.models import build_model

POLICIES = ("adbs", "temporal", "mixed")
_RANK = 8
_KV_GB = 0.25
_TEXT_TOKENS = (8, 128)
# Requests/s of each class at load 1.
RATES = {"base": 0.5, "adapters": 1.0, "chat": 0.75, "embedder": 4.0, "reranker": 4.0}
_ENCODERS = ("embedder", "reranker")
_GOAL = 0.99


def make_reranker(folder: Path, tokenized: Path) -> Path:
    """A cross-encoder of one label, with the tokenizer in `tokenized`."""
    path = folder / "reranker"
    torch.manual_seed(1)
    config = AutoConfig.for_model("xlm-roberta", **ENCODER_SHAPE, type_vocab_size=1, num_labels=1)
    AutoModelForSequenceClassification.from_config(config, dtype=torch.float32).save_pretrained(
        path
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenized / name, path / name)
    return path


def make_models(folder: Path, num_adapters: int) -> list[dict[str, Any]]:
    """The entries of a configuration, with the files that they name."""
    base, chat = (
        build_model(folder / name, "llama", seed=seed, **SHAPE)
        for seed, name in enumerate(("base", "chat"))
    )
    chats = {
        "dtype": "float32",
        "max_seqs": 32,
        "max_model_len": 256,
        "prompt_tokens": 80,
        "output_tokens": 64,
        "slo": {"ttft": TTFT_S, "tpot": TPOT_S},
    }
    embedder = make_embedder(folder)
    reranker = make_reranker(folder, embedder)
    encoders = {"dtype": "float32", "prompt_tokens": 68, "slo": {"ttft": TTFT_S, "tpot": TPOT_S}}
    adapters = write_adapters(base, folder, num_adapters, _RANK)
    return [
        {"name": "base", "path": str(base), **chats, "rate": 1.5, "adapters": adapters},
        {"name": "chat", "path": str(chat), **chats, "rate": RATES["chat"]},
        {"name": "embedder", "path": str(embedder), **encoders, "rate": RATES["embedder"]},
        {"name": "reranker", "path": str(reranker), **encoders, "rate": RATES["reranker"]},
    ]


def write_config(folder: Path, models: Sequence[Mapping[str, Any]], policy: str) -> Path:
    config = folder / f"{policy}.yaml"
    settings = {"kv_gb": _KV_GB, "scheduler": policy}
    config.write_text(yaml.safe_dump({"models": list(models), "policy": settings}))
    return config


def asks_of(
    rng: random.Random, load: float, duration_s: float, adapters: Sequence[str]
) -> list[Ask]:
    """The requests of all classes, by time."""
    weights = [1 / rank for rank in range(1, len(adapters) + 1)]
    found = []
    for name, rate in RATES.items():
        for at_s in poisson(rng, load * rate, duration_s):
            if name in _ENCODERS:
                size = rng.randint(*_TEXT_TOKENS)
                found.append(Ask(at_s, name, random_tokens(rng, size, 30_000), 1))
                continue
            prompt = random_tokens(rng, rng.randint(*PROMPT_TOKENS), SHAPE["vocab_size"])
            adapter = rng.choices(adapters, weights)[0] if name == "adapters" else ""
            model = "chat" if name == "chat" else "base"
            found.append(Ask(at_s, model, prompt, rng.randint(*OUTPUT_TOKENS), adapter))
    return sorted(found, key=lambda ask: ask.at_s)


def class_of(ask: Ask) -> str:
    return "adapters" if ask.adapter else ask.model


def row_of(load: float, asks: Sequence[Ask], answers: Sequence[Answer]) -> dict[str, Any]:
    """What the record says of one policy's play."""
    pairs = list(zip(asks, answers, strict=True))
    by_class = Counter(class_of(ask) for ask in asks)
    in_time = Counter(class_of(ask) for ask, answer in pairs if answer.is_in_time(ask))
    return {
        "load": load,
        "requests": dict(by_class),
        "in_time": {name: in_time[name] for name in by_class},
        "whole": sum(answer.num_tokens == ask.num_tokens for ask, answer in pairs),
        "first_ms": {
            name: percentiles(
                [1e3 * (each.first_s - ask.at_s) for ask, each in pairs if class_of(ask) == name]
            )
            for name in by_class
        },
    }


def play_all(
    sides: Sequence[Side],
    loads: Sequence[float],
    adapters: Sequence[str],
    duration_s: float,
    rounds: int,
    seed: int,
) -> dict[str, list[dict[str, Any]]]:
    """Every policy's rows."""
    rng = random.Random(seed)
    found: dict[str, list[dict[str, Any]]] = {side.name: [] for side in sides}
    warm_up = asks_of(rng, loads[0], WARM_UP_S, adapters)
    for side in sides:
        side.play(warm_up)
    for number in range(rounds):
        for load in loads:
            asks = asks_of(rng, load, duration_s, adapters)
            for name, answers in in_turn(sides, number, asks):
                row = row_of(load, asks, answers)
                found[name].append(row)
                print(json.dumps({"policy": name, **row}), flush=True)
    return found


def claims_of(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Claim]:
    ours = rows[POLICIES[0]]
    first = min(row["load"] for row in ours)
    asked, in_time = Counter[str](), Counter[str]()
    for row in ours:
        if row["load"] == first:
            asked.update(row["requests"])
            in_time.update(row["in_time"])
    worst = min(in_time[name] / asked[name] for name in asked)
    yield Claim("worst_class_in_time", round(worst, 4), "of requests", _GOAL)
    totals = {
        name: sum(sum(row["in_time"].values()) for row in found) for name, found in rows.items()
    }
    others = max(total for name, total in totals.items() if name != POLICIES[0])
    over = totals[POLICIES[0]] / max(1, others)
    yield Claim("in_time_over_best_other_policy", round(over, 3), "x", 1.0)
    lost = sum(
        sum(row["requests"].values()) - row["whole"] for found in rows.values() for row in found
    )
    yield Claim("requests_lost", lost, "requests", 0)


def main() -> None:
    """Load all policies' units, play, publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--loads", type=float, nargs="+", metavar="L", help="times the rates")
    parser.add_argument("--adapters", type=int, metavar="N", help="default: 100, quick: 5")
    parser.add_argument("--duration", type=float, metavar="S", help="of arrivals, for each load")
    parser.add_argument("--rounds", type=int, metavar="N", help="default: 3, quick: 1")
    bench = Bench(parser)
    options = bench.options
    loads = options.loads or ([1.0] if options.quick else [1.0, 1.5, 2.0])
    duration_s = options.duration or (5.0 if options.quick else 40.0)
    with tempfile.TemporaryDirectory(prefix="bench-mixed-") as root, ExitStack() as ends:
        folder = Path(root)
        models = make_models(folder, options.adapters or (5 if options.quick else 100))
        adapters = [each["name"] for each in models[0]["adapters"]]
        names = [model["name"] for model in models]
        sides = [
            ends.enter_context(one_unit(policy, write_config(folder, models, policy), names))
            for policy in POLICIES
        ]
        rounds = options.rounds or (1 if options.quick else 3)
        rows = play_all(sides, loads, adapters, duration_s, rounds, options.seed)
    samples = {
        f"{name} in time": [sum(row["in_time"].values()) for row in found]
        for name, found in rows.items()
    }
    bench.publish(
        list(claims_of(rows)),
        samples,
        model=SHAPE,
        encoder=ENCODER_SHAPE,
        adapters=len(adapters),
        rank=_RANK,
        rates=RATES,
        targets_s={"ttft": TTFT_S, "tpot": TPOT_S},
        rows=rows,
    )


if __name__ == "__main__":
    main()
