"""The demand of a simulation: a load, and the planner's problem with the rates of that load."""

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from muxcluster.core.errors import ConfigError
from muxcluster.placement.names import nearest
from muxcluster.placement.problem import Demand, Problem
from muxcluster.sim.demand.loads import Load, Trace, form_of, poisson_load
from muxcluster.workload.arrival import Arrival
from muxcluster.workload.popularity import power_law_rates
from muxcluster.workload.summary import ModelSummary, summarise

_RAREST_PER_S, _MOST_PER_S = 1e-9, 1e6  # Requests/s of a model


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options of the simulated load."""

    duration_s: float
    seed: int
    # Exponent of a power law over the models, ordered by configured rate; None keeps those rates
    alpha: float | None = None
    # Requests/s of the most popular model, None for the highest configured
    max_rate: float | None = None
    sigma: float = 1.0  # spread of the lengths, 0 for constant ones
    trace: Path | None = None  # a trace file instead of distributions


def demand_of(options: LoadOptions, problem: Problem, scale: float) -> tuple[Load, Problem]:
    """Return the load at `scale` times its rates, and the problem of placing models for that load.

    Both are of interactive requests alone: reports of systems do not tell classes apart.
    Raises ConfigError for a trace that is malformed or names other models than the problem, and for
    rates that cannot be simulated.
    """
    problem = problem.without_backlogs()
    rates = _rates(options, problem)
    if options.trace is None:
        scaled = {name: _possible(name, rate * scale) for name, rate in rates.items()}
        demands = tuple(replace(each, rate=scaled[each.name]) for each in problem.demands)
        return poisson_load(demands, options.sigma), replace(problem, demands=demands)
    trace = Trace(
        options.trace, form_of(options.trace), tuple(rates.items()), scale, digest_of(options.trace)
    )
    return trace, _as_traced(problem, trace, options)


def _rates(options: LoadOptions, problem: Problem) -> dict[str, float]:
    configured = {demand.name: demand.rate for demand in problem.demands}
    if options.alpha is None:
        return configured
    order = sorted(configured, key=lambda name: -configured[name])
    highest = max(configured.values()) if options.max_rate is None else options.max_rate
    found = power_law_rates(len(order), options.alpha, highest).tolist()
    return dict(zip(order, found, strict=True))


def _possible(name: str, rate: float) -> float:
    if _RAREST_PER_S <= rate <= _MOST_PER_S:
        return rate
    least, most = (f"{each:g}" for each in (_RAREST_PER_S, _MOST_PER_S))
    message = f"{name!r} would get {rate:g} requests/s: expected {least} to {most}"
    raise ConfigError("--alpha, --max-rate, --rate-scale", "", message)


def _as_traced(problem: Problem, trace: Trace, options: LoadOptions) -> Problem:
    """Return the problem with the rates and mean lengths of the trace's span."""
    found = {each.model: each for each in _summaries(trace, problem, options)}
    if not found:
        raise ConfigError(trace.path, "", f"no request in its first {options.duration_s:g} s")
    return replace(
        problem,
        demands=tuple(_traced(each, found.get(each.name), options) for each in problem.demands),
    )


def _summaries(trace: Trace, problem: Problem, options: LoadOptions) -> tuple[ModelSummary, ...]:
    names = {demand.name for demand in problem.demands}

    def known(arrival: Arrival) -> Arrival:
        if arrival.model not in names:
            hint = nearest(arrival.model, names)
            message = f"{arrival.model!r} is no model of the configuration{hint}"
            raise ConfigError(trace.path, f"request {arrival.request_id}", message)
        return arrival

    return summarise(map(known, trace.arrivals(options.seed, options.duration_s)))


def _traced(demand: Demand, found: ModelSummary | None, options: LoadOptions) -> Demand:
    """Return the demand as traced; a model without requests counts as asked once."""
    if found is None:
        return replace(demand, rate=1 / options.duration_s)
    return replace(
        demand,
        rate=found.num_requests / options.duration_s,
        prompt_tokens=found.prompt_tokens.mean,
        output_tokens=found.output_tokens.mean,
    )


def digest_of(path: Path) -> str:
    """Return the digest of a file's content. Raises ConfigError."""
    try:
        return sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(path, "", f"cannot be read: {error.strerror}") from error
