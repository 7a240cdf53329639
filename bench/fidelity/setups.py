"""Models, units and requests of `bench/engine_fidelity.py`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from muxcluster.core.request import ServiceClass
from muxcluster.workload.arrival import Arrival
from muxcluster.workload.generate import Source, generate
from muxcluster.workload.lengths import Independent, Limited
from muxcluster.workload.marginals import LogNormal
from muxcluster.workload.processes import Poisson

MAX_LEN = 256
_COMMON = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 8192,
    "max_position_embeddings": MAX_LEN,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "head_dim": 64,
}
# Random Llamas of 12 to 21 million parameters (fp32: 50 to 85 MB, more than a share of the caches),
# whose decode steps take some milliseconds on two cores.
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "even": _COMMON
    | {
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
    },
    "wide": _COMMON
    | {
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
    "deep": _COMMON
    | {
        "hidden_size": 320,
        "intermediate_size": 896,
        "num_hidden_layers": 10,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
    },
    "narrow": _COMMON
    | {
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}
_PROMPT = LogNormal.of_mean(48, {50: 40})
_OUTPUT = LogNormal.of_mean(12, {50: 10})
_MOST_PROMPT, _MOST_OUTPUT = 160, 64
_BATCH_PART = 0.25  # of the requests are of class batch
_SLO = {"ttft": 0.5, "tpot": 0.1}
_KV_GB = 0.25
_NUM_WARM_UP = 200
_PAUSE_S = 5.0  # within which what waits at the highest load has been answered
_STRETCH = 100  # requests: some seconds, in which a machine's speed changes little


@dataclass(frozen=True, slots=True)
class Setup:
    """A unit: its models, the most popular first, and its policy."""

    models: tuple[str, ...]
    lane: str
    packing: str
    sharing: str = "auto"

    @property
    def name(self) -> str:
        """As printed and recorded."""
        always = ", sharing always" if self.sharing == "always" else ""
        return f"{len(self.models)} {self.lane} {self.packing}{always}"


def popularity(models: Sequence[str]) -> dict[str, float]:
    """Part of the requests by model: in inverse proportion to its place."""
    total = sum(1 / place for place in range(1, len(models) + 1))
    return {name: 1 / place / total for place, name in enumerate(models, 1)}


def write_models(folder: Path) -> None:
    """Write a directory per shape with a configuration alone; the engine draws the weights."""
    for name, shape in SHAPES.items():
        path = folder / name
        path.mkdir()
        (path / "config.json").write_text(json.dumps(shape), encoding="utf-8")


def write_config(folder: Path, setup: Setup, rate_per_s: float, profiles: Sequence[Path]) -> Path:
    """Write the muxcluster.yaml of a unit in `folder`, beside its models."""
    shares = popularity(setup.models)
    models = [
        {
            "name": name,
            "path": name,
            "load_format": "dummy",
            "seed": seed,
            "rate": rate_per_s * shares[name],
            "prompt_tokens": 48,
            "output_tokens": 12,
            "slo": _SLO,
        }
        for seed, name in enumerate(setup.models)
    ]
    policy = {
        "scheduler": setup.lane,
        "packing": setup.packing,
        "sharing": setup.sharing,
        "kv_gb": _KV_GB,
    }
    cluster = {"profiles": [str(path) for path in profiles]}
    path = folder / "muxcluster.yaml"
    path.write_text(yaml.safe_dump({"models": models, "policy": policy, "cluster": cluster}))
    return path


def arrivals(setup: Setup, rate_per_s: float, count: int, seed: int) -> list[Arrival]:
    """Return the first `count` requests of a Poisson process; another rate only scales times."""
    lengths = Limited(Independent(_PROMPT, _OUTPUT), _MOST_PROMPT, _MOST_OUTPUT)
    sources = [
        Source(name, Poisson(rate_per_s * share * part), lengths, service_class)
        for name, share in popularity(setup.models).items()
        for service_class, part in _classes()
    ]
    return list(islice(generate(sources, seed, end_s=1e6), count))


@dataclass(frozen=True, slots=True)
class Case:
    """Requests in stretches, each of which begins when the one before has been answered.

    First come others that do not count: a worker is slow at the first job of each size, quotas
    adapt, and `adbs` finds out whether sharing pays. The simulator gets these, too.
    """

    warm_up: Sequence[Arrival]
    stretches: Sequence[Sequence[Arrival]]  # times from the beginning of each


def case_of(setup: Setup, capacity_per_s: float, load: float, count: int, seed: int) -> Case:
    """Return at least `count` requests at a part of the capacity."""
    warm_up = arrivals(setup, capacity_per_s, _NUM_WARM_UP, seed)
    return Case(
        [replace(each, request_id=f"warm-up/{each.request_id}") for each in warm_up],
        [
            [
                replace(each, request_id=f"{number}/{each.request_id}")
                for each in arrivals(setup, load * capacity_per_s, _STRETCH, seed + 1 + number)
            ]
            for number in range(-(-count // _STRETCH))
        ],
    )


def in_a_row(case: Case) -> tuple[list[Arrival], list[float]]:
    """Return all requests of a case with the stretches some seconds apart, and their beginnings."""
    asked, begins_s = list(case.warm_up), []
    for stretch in case.stretches:
        begins_s.append(asked[-1].time_s + _PAUSE_S)
        asked += [replace(each, time_s=begins_s[-1] + each.time_s) for each in stretch]
    return asked, begins_s


def _classes() -> Iterator[tuple[ServiceClass, float]]:
    yield ServiceClass.INTERACTIVE, 1 - _BATCH_PART
    yield ServiceClass.BATCH, _BATCH_PART
