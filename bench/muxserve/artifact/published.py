"""Reader of the runs that MuxServe's authors published: placement, load, results."""

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.traces.muxserve import (
    SHAREGPT_PROMPT_TOKENS,
    read_chatlmsys_rates,
    read_point_rates,
)

SYSTEMS = ("muxserve", "spatial", "temporal")
_FOLDERS = {"muxserve": "flexsm", "spatial": "spatial", "temporal": "temporal"}
_CONDENSED = (500, 1200)
_GPU_GB = 80.0
# gpu_memory_utilization of every spatial unit of the synthetic runs (their bench_end_to_end).
_SPATIAL_KV_SHARE = 0.5
Row = dict[str, str]
# Mean prompt and output of what was sent, as the reference's scheduler has it. Its planner takes
# 161 and 337, which would be 498; single requests took as long as about 250 output tokens do.
_SHAREGPT_TOKENS = 416
_WEIGHTS_GB = {"llama-7b": 14, "llama-13b": 26, "llama-30b": 60, "llama-65b": 130}


@dataclass(frozen=True, slots=True)
class Served:
    """One model of a published run."""

    name: str
    shape: str
    # rate_per_s, count: requests come at this rate until there were so many
    rate_per_s: float
    count: int
    # prompt, output: mean tokens
    prompt: float
    output: float
    # prefill_share, decode_share: SM shares of its two processes
    prefill_share: float
    decode_share: float
    # published throughput, requests over the time of the model's own last completion
    measured_per_s: float
    span_s: float | None = None


@dataclass(frozen=True, slots=True)
class Mesh:
    """GPUs and what ran on them."""

    tp: int
    kv_share: float  # of the GPUs' memory, that KV caches had together
    models: tuple[Served, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One system at one point."""

    point: str  # such as "chatlmsys_c500" or "synth19_a0.7_s0.5"
    system: str
    meshes: tuple[Mesh, ...]
    # Its jobs had the SM shares of `meshes`, by their scheduler; else these were not recorded
    has_shares: bool = False

    @property
    def models(self) -> tuple[Served, ...]:
        """All of them."""
        return tuple(model for mesh in self.meshes for model in mesh.models)


def read_runs(data: Path) -> tuple[Run, ...]:
    """Every published run below `data`/muxserve, by point and system.

    Raises OSError or ValueError (ConfigError) where a file is missing or not as expected.
    """
    folder = data / "muxserve"
    return (*_chatlmsys(folder), *_synthetic(folder))


def _chatlmsys(folder: Path) -> Iterator[Run]:
    rows = _rows(folder / "chatlmsys_measured_condense500_1200.csv")
    outputs = _outputs(rows)
    for condense in _CONDENSED:
        rates = read_chatlmsys_rates(folder / "chatlmsys_rates_day55.csv", condense)
        rate_of = {rate.name: rate.rate_per_s for rate in rates}
        for system in SYSTEMS:
            found = [r for r in rows if (r["condense"], r["system"]) == (str(condense), system)]
            by_name = {row["llm"]: row for row in found}
            meshes = tuple(
                _recorded_mesh(path, by_name, rate_of, outputs)
                for path in _placements(folder, system, condense)
            )
            yield Run(f"chatlmsys_c{condense}", system, meshes, has_shares=True)


def _placements(folder: Path, system: str, condense: int) -> Sequence[Path]:
    """The files of a run; spatial ones do not depend on the rate."""
    names = folder / "placements" / _FOLDERS[system]
    found = sorted(names.glob(f"condense{condense}_*.yaml"))
    found = found or sorted(names.glob("condense500_*.yaml"))
    if not found:
        raise ValueError(f"{names}: no placement of condense {condense}")
    return found


def _outputs(rows: Sequence[Row]) -> dict[str, float]:
    """Mean output tokens by model: the first token, and decode steps a request.

    A request that was set back decodes again, so the run with the fewest steps tells.
    """
    found: dict[str, float] = {}
    for row in rows:
        steps = float(row["decoding_avg_batches"]) * float(row["decoding_batch_times"])
        output = 1.0 + steps / int(row["request_num"])
        found[row["llm"]] = min(output, found.get(row["llm"], output))
    return found


def _recorded_mesh(
    path: Path, rows: Mapping[str, Row], rates: Mapping[str, float], outputs: Mapping[str, float]
) -> Mesh:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    models = tuple(
        _recorded_model(rows[model["name"]], rates[model["name"]], outputs[model["name"]])
        for model in document["models"]
    )
    return Mesh(document["num_gpus"], document["gpu_memory_utilization"], models)


def _recorded_model(row: Row, rate: float, output: float) -> Served:
    # Five shares of these runs are not those of their placements. Prefills have the larger one.
    percentages = [int(each) for each in row["mps"].split("/")]
    count, per_s = int(row["request_num"]), float(row["throughput"])
    tokens = float(row["tokens_throughput"]) / per_s
    return Served(
        name=row["llm"],
        shape=row["model"],
        rate_per_s=rate,
        count=count,
        prompt=tokens - output,
        output=output,
        prefill_share=max(percentages) / 100,
        decode_share=min(percentages) / 100,
        measured_per_s=per_s,
        span_s=count / rate,
    )


def _synthetic(folder: Path) -> Iterator[Run]:
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in _rows(folder / "e2e_synthetic_measured_per_llm.csv"):
        point = f"synth19_a{row['alpha']}_s{row['rate_scale']}"
        groups[point, row["system"]].append(row)
    for (point, system), rows in groups.items():
        rates = read_point_rates(folder / "planner_points.json", point)
        rate_of = {rate.name: rate.rate_per_s for rate in rates}
        yield Run(point, system, tuple(_synthetic_meshes(system, rows, rate_of)))


def _synthetic_meshes(
    system: str, rows: Sequence[Row], rate_of: dict[str, float]
) -> Iterator[Mesh]:
    by_device: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        # spatial: the number of GPUs that the model has to itself; else a mesh's name
        by_device[row["llm"] if system == "spatial" else row["device"]].append(row)
    for found in by_device.values():
        tp = int(found[0]["device"].removeprefix("mesh").partition("idx")[0])
        models = tuple(_synthetic_model(system, row, rate_of) for row in found)
        share = _SPATIAL_KV_SHARE if system == "spatial" else kv_share(tp, models)
        yield Mesh(tp, share, models)


def _synthetic_model(system: str, row: Row, rate_of: dict[str, float]) -> Served:
    shared = system == "muxserve"
    return Served(
        name=row["llm"],
        shape=row["model"],
        rate_per_s=rate_of[row["llm"]],
        count=int(row["n_total"]),
        prompt=SHAREGPT_PROMPT_TOKENS,
        output=_SHAREGPT_TOKENS - SHAREGPT_PROMPT_TOKENS,
        prefill_share=0.9 if shared else 1.0,
        decode_share=0.3 if shared else 0.9,
        measured_per_s=float(row["throughput_rps"]),
    )


def kv_share(tp: int, models: Sequence[Served]) -> float:
    """Part of the GPUs' memory that is KV cache: weights, 6 GB a model and 1.6 GB for its two
    processes on each GPU are not (the reference's planner writes it so)."""
    weights = sum(_WEIGHTS_GB[model.shape] for model in models) / tp
    return 1.0 - (weights + 7.6 * len(models)) / _GPU_GB


def _rows(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
