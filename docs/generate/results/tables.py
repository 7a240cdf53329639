"""Tables of the records' rows, by the name that a template uses."""

from collections.abc import Callable, Iterable, Mapping
from statistics import fmean
from typing import Any

from docs.generate.markdown import table
from docs.generate.records import needed, number, percent, record, seconds, times

Rows = Iterable[Mapping[str, Any]]
_OURS = "muxserve"
_LATENCIES = (("ttft_ms", "p50"), ("ttft_ms", "p99"), ("tpot_ms", "p50"), ("tpot_ms", "p99"))


def _fidelity() -> str:
    """Return measured and simulated requests/s of the published runs, a row a point."""
    runs = needed("muxserve/fidelity")["runs"]
    systems = list(dict.fromkeys(run["system"] for run in runs))
    by_point: dict[str, dict[str, Any]] = {}
    for run in runs:
        by_point.setdefault(run["point"], {})[run["system"]] = run
    rows = [
        (f"`{point}`", *(_measured(found[system]) for system in systems))
        for point, found in by_point.items()
    ]
    return table(("point", *systems), rows)


def _measured(run: Mapping[str, Any]) -> str:
    error = _signed(run["error"])
    return f"{run['measured_per_s']:.1f} / {run['simulated_per_s']:.1f} ({error})"


def _evaluation() -> str:
    """Return ours and its rivals at every point, and the requests within the SLO."""
    cells = needed("muxserve/evaluation")["cells"]
    systems = list(dict.fromkeys(cell["system"] for cell in cells))
    rivals = [system for system in systems if system != _OURS]
    points: dict[tuple[float, float], dict[str, Any]] = {}
    for cell in cells:
        points.setdefault((cell["alpha"], cell["rate_scale"]), {})[cell["system"]] = cell
    rows = []
    for (alpha, scale), found in points.items():
        ours = found[_OURS]
        served, half = ours["requests_per_s"]
        within = " / ".join(f"{found[name]['within_slo'][0]:.0%}"[:-1] for name in systems)
        rows.append(
            (
                f"{alpha:g} × {scale:g}",
                f"{ours['offered_per_s']:.0f}",
                f"{served:.1f} ± {half:.1f}",
                *(_over(served, found[name]["requests_per_s"][0]) for name in rivals),
                f"{within} %",
                " / ".join(seconds(found[name]["p99_ttft_s"]) for name in systems),
            )
        )
    names = " / ".join(["ours", *rivals])
    head = ("α × rate", "offered/s", "ours, requests/s", *(f"over {name}" for name in rivals))
    return table((*head, f"within SLO: {names}", f"P99 TTFT: {names}"), rows)


def _over(ours: float, theirs: float) -> str:
    return times(ours / theirs) if theirs else "nothing served"


def _highest() -> str:
    """Return the highest rate scale with 99 % within the SLO, by alpha."""
    found = needed("muxserve/evaluation")["highest_rate_scale_at_99"]
    systems = list(next(iter(found.values())))
    rows = [
        (alpha, *(f"{scales[name]:.2f}" for name in systems)) for alpha, scales in found.items()
    ]
    return table(("α", *("ours" if name == _OURS else name for name in systems)), rows)


def _adbs() -> str:
    """Return ADBS against FCFS and round robin on one mesh, beside the paper's figures."""
    rows = needed("muxserve/evaluation")["ablation"]
    by_case: dict[tuple[str, float], dict[str, Any]] = {}
    for row in rows:
        by_case.setdefault((row["models"], row["overload"]), {})[row["system"]] = row
    systems = list(dict.fromkeys(row["system"] for row in rows))
    lines = [
        (
            models,
            f"× {overload:g}",
            *(f"{found[name]['rate_weighted_per_s']:.1f}" for name in systems),
            f"{found[_OURS]['least_fair_share']:.2f}",
            " / ".join(f"{found[name]['paper']:g}" for name in systems),
        )
        for (models, overload), found in by_case.items()
    ]
    named = ["ADBS" if name == _OURS else name for name in systems]
    head = ("models", "rates", *named, "least fair share of ADBS", f"paper: {' / '.join(named)}")
    return table(head, lines)


def _ablations() -> str:
    """Return the gain of each part by load."""
    ratios = needed("muxserve/ablations")["ratios"]
    rows = [
        (
            name.removesuffix("_max").replace("_", " "),
            ", ".join(f"{load}: {value:.2f}" for load, value in found.items()),
        )
        for name, found in ratios.items()
    ]
    return table(("experiment", "ratio, by load"), rows)


def _bros() -> str:
    """Return the systems of one setup at each rate."""
    cells = needed("hybrid/bros")["cells"]
    mine = [each for each in cells if each["lengths"] == "sharegpt" and each["batch"]]
    systems = list(dict.fromkeys(each["system"] for each in mine))
    rows = []
    for setup in dict.fromkeys(each["setup"] for each in mine):
        for name in systems:
            found = [each for each in mine if (each["setup"], each["system"]) == (setup, name)]
            found.sort(key=lambda each: each["rate_per_s"])
            if found:
                shares = " / ".join(f"{100 * each['ttft_attainment'][0]:.0f}" for each in found)
                rows.append((setup, name, f"{shares} %", _tokens(found)))
    rates = " / ".join(f"{rate:g}" for rate in sorted({each["rate_per_s"] for each in mine}))
    head = (f"first tokens in time at {rates} requests/s", "batch tokens/s")
    return table(("model", "policy", *head), rows)


def _tokens(cells: list[Mapping[str, Any]]) -> str:
    key = next(key for key in cells[0] if key.startswith("batch_") and "tokens" in key)
    return " / ".join(number(round(each[key][0], -1)) for each in cells)


def _traces() -> str:
    """Return what came out beside each offline slice."""
    claims = {each["name"]: each["value"] for each in needed("hybrid/traces")["claims"]}
    rows = []
    for slice_ in ("generation", "scoring", "all"):
        loss = -claims[f"batch_throughput_loss_vs_fcfs_{slice_}"]
        rows.append(
            (
                f"`{slice_}`",
                percent(claims[f"ttft_attainment_{slice_}"]),
                percent(claims[f"normalised_latency_cut_vs_fcfs_{slice_}"]),
                percent(claims[f"normalised_latency_cut_vs_round_robin_{slice_}"]),
                f"{loss:+.0%}".replace("%", " %").replace("-", "−"),
                times(claims[f"apart_ttft_ratio_{slice_}"]),
            )
        )
    head = ("offline slice", "first tokens in time", "latency cut against `fcfs`")
    more = ("against `round-robin`", "batch tokens/s", "TTFT with blocks apart over ours")
    return table((*head, *more), rows)


def _batchllm() -> str:
    """Return requests/s of each system beside the paper's."""
    rows = []
    for case in needed("offline/batchllm")["cases"]:
        for name, found in case["systems"].items():
            # 1 stands for the system that the paper compares with, without a figure
            paper = "" if found["paper"] in (None, 1) else f"{found['paper']:g}"
            rows.append(
                (
                    case["case"],
                    name,
                    f"{found['requests_per_s']:.2f}",
                    paper,
                    percent(found["saving"]),
                )
            )
    return table(("case", "system", "requests/s", "paper", "prompt tokens saved"), rows)


def _batchllm_micro() -> str:
    """Return the gain of the micro-benchmarks."""
    rows = []
    for case in needed("offline/batchllm")["micro"]:
        ours, cached = (case["systems"][name] for name in ("BatchLLM", "vLLM + both"))
        rows.append(
            (
                case["case"],
                times(ours["requests_per_s"] / cached["requests_per_s"]),
                percent(case["optimum"]),
                percent(ours["saving"]),
                percent(cached["saving"]),
            )
        )
    head = ("prefix / own tokens", "speed over prefix cache", "most that can be saved")
    return table((*head, "ours saves", "prefix cache saves"), rows)


def _savings() -> str:
    """Return the shares of prompt tokens saved on real jobs."""
    rows = [
        (
            row["name"],
            *(percent(row["tokens"][key]) for key in ("optimum", "greedy", "one_level")),
            percent(row["batchllm"]),
            percent(row["lru"]),
        )
        for row in needed("offline/savings")["savings"]
    ]
    return table(("job", "maximum", "Alg. 1", "one level", "ours", "LRU in arrival order"), rows)


def _batchllm_engine() -> str:
    rows = [
        (shape["case"], times(shape["speedup"]), percent(shape["optimum"]))
        for shape in needed("offline/engine")["shapes"]
    ]
    return table(
        ("prefix / own tokens", "speed over arrival order", "most that can be saved"), rows
    )


def _blendserve() -> str:
    """Return every run of the record: order, makespan, use."""
    rows = [
        (
            run["name"] if "name" in run else run.get("case", ""),
            seconds(run["makespan_s"]),
            percent(run["share_of_permitted"]),
            percent(run["sharing_kept"]),
        )
        for run in needed("offline/blendserve")["runs"]
        if "100000 requests" in (run.get("name") or run.get("case") or "")
    ]
    return table(("run", "makespan", "of the maximum", "sharing kept"), rows)


def _multi_model() -> str:
    rows = [
        (
            name,
            times(found["throughput_over_one_after_other"]),
            times(found["mixed"]),
            times(found["permitted"]),
        )
        for name, found in needed("offline/multi_model")["summaries"].items()
    ]
    return table(("pair", "over one after the other", "in mixed jobs", "bound"), rows)


def _dense() -> str:
    """Return time over the static batch of every method, beside the paper's."""
    rows = needed("dense")["rows"]
    lines = [
        (
            row["case"].replace("_", ", "),
            row["method"],
            seconds(row["seconds"]),
            times(row["speedup"]),
            "" if row.get("paper_speedup") is None else times(row["paper_speedup"]),
        )
        for row in rows
    ]
    return table(("batch", "method", "time", "over static", "paper"), lines)


def _serving() -> str:
    rows = []
    for row in needed("serving")["rows"]:
        best = max(row["hf_static_tokens_per_s"], row["hf_continuous_tokens_per_s"])
        rows.append(
            (
                str(row["concurrency"]),
                number(row["tokens_per_s"]),
                number(row["in_process_tokens_per_s"]),
                number(row["hf_static_tokens_per_s"]),
                number(row["hf_continuous_tokens_per_s"]),
                times(row["tokens_per_s"] / best),
            )
        )
    head = ("concurrent", "ours, HTTP", "ours, in process")
    more = ("transformers, static", "transformers, continuous", "HTTP over the better")
    return table((*head, *more), rows)


def _several_models() -> str:
    """Return what each side did at each rate, its rounds together."""
    rows = []
    for side, found in needed("several_models")["rows"].items():
        for rate in sorted({row["rate"] for row in found}):
            rounds = [row for row in found if row["rate"] == rate]
            asked = sum(row["requests"] for row in rounds)
            rows.append(
                (
                    f"{rate:g}",
                    f"`{side}`",
                    percent(sum(row["in_time"] for row in rounds) / asked),
                    number(fmean(row["tokens_per_s"] for row in rounds)),
                    " / ".join(
                        number(fmean(row[what][share] for row in rounds))
                        for what, share in _LATENCIES
                    ),
                )
            )
    rows.sort(key=lambda row: float(row[0]))
    latencies = "TTFT p50 / p99, TPOT p50 / p99, ms (means of the rounds)"
    return table(("requests/s", "side", "in time", "tokens/s", latencies), rows)


def _mixed_load() -> str:
    """Return each policy's share in time at each load, class by class."""
    rows = []
    for policy, found in needed("mixed_load")["rows"].items():
        for load in sorted({row["load"] for row in found}):
            rounds = [row for row in found if row["load"] == load]
            shares = (
                percent(
                    sum(row["in_time"][name] for row in rounds)
                    / sum(row["requests"][name] for row in rounds)
                )
                for name in rounds[0]["requests"]
            )
            rows.append((f"{load:g}", f"`{policy}`", *shares))
    rows.sort(key=lambda row: float(row[0]))
    return table(("load", "policy", *rounds[0]["requests"]), rows)


def _placement_scale() -> str:
    rows = [
        (
            str(row["num_models"]),
            str(row["num_gpus"]),
            percent(row["served"] / row["asked"]),
            seconds(row["plan_s"]),
        )
        for row in needed("placement")["scale"]
    ]
    return table(("models", "GPUs", "of the demand served", "planning time"), rows)


def _placement_overload() -> str:
    """Return our plans over the baselines' at each input under overload."""
    rows = [
        (
            f"`{row['point']}`",
            times(row["greedy"] / row["spatial"]) if row["spatial"] else "no plan",
            times(row["greedy"] / row["memory_greedy"]) if row["memory_greedy"] else "no plan",
        )
        for row in needed("placement")["own"]
        if row["scale"] > 1
    ]
    return table(
        ("input, four times its rates", "over one model a mesh", "over most free memory"), rows
    )


def _simulator() -> str:
    rows = [
        (
            f"`{row['point']}`",
            str(row["num_units"]),
            times(row["step_exact_x"]),
            times(row["plain_x"]),
        )
        for row in needed("simulator")["points"]
    ]
    return table(("point", "units", "over real time", "scheduler after every step"), rows)


def _thirty() -> str:
    """Return the picture's figures: requests in time by rate."""
    rows = needed("muxserve/thirty_models")["rows"]
    systems = list(dict.fromkeys(row["system"] for row in rows))
    by_rate: dict[float, dict[str, Any]] = {}
    for row in rows:
        by_rate.setdefault(row["offered_per_s"], {})[row["system"]] = row
    lines = [
        (f"{rate:.0f}", *(percent(found[name]["in_time"]) for name in systems))
        for rate, found in by_rate.items()
    ]
    return table(("offered, requests/s", *systems), lines)


def _thirty_at_low_rates() -> str:
    """Say how ours does at the lowest rate beside the best of the baselines there."""
    rows = needed("muxserve/thirty_models")["rows"]
    lowest = min(row["rate_scale"] for row in rows)
    shares = {row["system"]: row["in_time"] for row in rows if row["rate_scale"] == lowest}
    ours = shares.pop("ours")
    name, best = max(shares.items(), key=lambda each: each[1])
    shown = f"{percent(ours)} of the requests in time against {percent(best)}"
    verdict = "slightly better" if ours < best else "no better"
    return f"At the lowest rate {name} is {verdict}: {shown}."


def _engine_fidelity() -> str:
    """Return simulated against served figures of each case, where that record is committed."""
    found = record("engine_fidelity")
    if found is None:
        return ""
    names = list(found["cases"][0]["errors"])
    rows = [
        (row["case"], *(_signed(row["errors"][name]) for name in names)) for row in found["cases"]
    ]
    return table(("case", *(name.replace("_", " ") for name in names)), rows)


def _residency() -> str:
    """Return the GPUs that each system needs at each load."""
    rows = []
    for found in needed("residency")["simulated"]:
        fewest: dict[str, str] = {}
        for row in found["rows"]:  # of each system, the fewest GPUs that are enough last
            fewest[row["system"]] = f"{row['num_gpus']} ({percent(row['in_time'])})"
        told = (f"{found['load']:g}", f"{found['num_requests']:,}", *fewest.values())
        rows.append((*told, _on_as_many(found["rows"])))
    systems = ("ours", "swap", "static")
    head = (
        *(f"{name}: GPUs (in time)" for name in systems),
        "in time on fewer GPUs: " + " / ".join(systems),
    )
    return table(("load", "requests", *head), rows)


def _on_as_many(rows: Rows) -> str:
    """Return shares in time on the most GPUs below what ours need that all were tried on."""
    by_gpus: dict[int, list[str]] = {}
    for row in rows:
        by_gpus.setdefault(row["num_gpus"], []).append(percent(row["in_time"]))
    enough = max(row["num_gpus"] for row in rows if row["system"] == "ours")
    tried = [gpus for gpus, shares in by_gpus.items() if len(shares) == 3 and gpus < enough]
    most = max(tried)
    return f"{most}: " + " / ".join(by_gpus[most])


def _signed(share: float | None) -> str:
    if share is None:
        return ""
    return f"{round(100 * share) + 0.0:+g} %".replace("-", "−")


# The commit of records whose units over several GPUs had more rungs than the engine gives them.
_SHARING_OVER_GPUS = "86625897"
_CAVEAT = (
    "**Not the engine's units**: where a unit spans several GPUs, these simulations let it choose "
    "among more SM shares than the engine gives it. They are to be simulated again."
)


def _units() -> str:
    """Say of which units the evaluation's figures are."""
    found = needed("muxserve/evaluation").get("units_compared")
    if found is None:
        return _CAVEAT
    compared = f"{number(found['units'])} simulated units of {number(found['clusters'])} clusters"
    num_different = len(found["differences"])
    if num_different:
        return (
            f"**{number(num_different)} of {compared} are not what the engine would build**: their "
            "figures say what sharing could gain, not what this engine would reach."
        )
    return f"Every simulated unit is one that the engine builds: {compared} were compared."


def _units_of_ablations() -> str:
    """Say the same of the ablations, whose record does not hold it."""
    commit = needed("muxserve/ablations")["commit"] or ""
    return _CAVEAT if commit.startswith(_SHARING_OVER_GPUS) else ""


TABLES: Mapping[str, Callable[[], str]] = {
    "units": _units,
    "units of ablations": _units_of_ablations,
    "fidelity": _fidelity,
    "evaluation": _evaluation,
    "highest": _highest,
    "adbs": _adbs,
    "ablations": _ablations,
    "bros": _bros,
    "traces": _traces,
    "batchllm": _batchllm,
    "batchllm micro": _batchllm_micro,
    "batchllm engine": _batchllm_engine,
    "savings": _savings,
    "blendserve": _blendserve,
    "multi-model": _multi_model,
    "dense": _dense,
    "serving": _serving,
    "several models": _several_models,
    "mixed load": _mixed_load,
    "placement scale": _placement_scale,
    "placement overload": _placement_overload,
    "simulator": _simulator,
    "thirty models": _thirty,
    "thirty models at low rates": _thirty_at_low_rates,
    "engine fidelity": _engine_fidelity,
    "residency": _residency,
}
