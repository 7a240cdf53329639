"""Closed-loop batch load: each wave starts when the one before it has ended, and only then."""

from dataclasses import replace

import numpy as np
import pytest

from muxcluster.core.request import ServiceClass
from muxcluster.sim.core.simulate import simulate
from muxcluster.sim.core.unit import SimUnit
from muxcluster.sim.demand.waves import Waves
from muxcluster.workload.lengths import Independent
from muxcluster.workload.marginals import Constant, LogNormal
from muxcluster.workload.metrics.records import CLASSES, Ending
from tests.sim.cases import arrivals, sim_unit

LENGTHS = Independent(LogNormal(5.5, 0.5), LogNormal(3.0, 0.5))
END_S = 25.0


def waves(model: str = "a", size: int = 40, seed: int = 1) -> Waves:
    return Waves(model, size, LENGTHS, END_S, seed)


def run(*units: SimUnit, rate: float = 4.0, exact: bool = False) -> np.ndarray:
    """Rows of all requests: interactive ones over the same time beside the waves."""
    asked = arrivals(int(rate * END_S), rate) if rate else []
    return simulate(units, asked, exact=exact).records.rows


def loaded(*loads: Waves, **unit) -> SimUnit:
    return replace(sim_unit(**unit), waves=loads)


def batch(rows: np.ndarray) -> np.ndarray:
    return rows[rows["service_class"] == CLASSES.index(ServiceClass.BATCH)]


@pytest.mark.parametrize("lane", ["adbs", "temporal", "mixed"])
@pytest.mark.parametrize("exact", [True, False])
def test_a_wave_starts_at_the_last_end_of_the_one_before(lane: str, exact: bool) -> None:
    """Read off the records: starts are the ends before them, every wave is whole."""
    rows = run(loaded(waves(), lane=lane), exact=exact)
    assert (rows["ending"] == Ending.FINISHED).all()
    assert len(rows) - len(batch(rows)) == 100
    starts, sizes = np.unique(batch(rows)["arrival_s"], return_counts=True)
    assert len(starts) > 2
    assert starts[0] == 0.0
    assert (sizes == 40).all()
    ends = [batch(rows)["last_token_s"][batch(rows)["arrival_s"] == s].max() for s in starts]
    assert starts[1:].tolist() == ends[:-1]
    assert starts[-1] < END_S <= ends[-1]


def test_the_same_seed_gives_the_same_waves_bit_by_bit() -> None:
    first, again, other = (run(loaded(waves(seed=seed))) for seed in (1, 1, 2))
    assert first.tobytes() == again.tobytes()
    assert batch(first)["prompt_tokens"].tolist() != batch(other)["prompt_tokens"].tolist()


def test_the_lengths_of_a_wave_do_not_depend_on_what_runs_beside_it() -> None:
    """So systems that are compared get the same waves, though at other times."""

    def lengths(**more: float) -> list[list[int]]:
        rows = batch(run(loaded(waves()), **more))
        first = rows[rows["arrival_s"] == 0.0]
        return sorted([int(p), int(o)] for p, o in first[["prompt_tokens", "output_tokens"]])

    assert lengths(rate=4.0) == lengths(rate=0.0)


def test_each_unit_and_each_model_has_a_loop_of_its_own() -> None:
    units = [
        loaded(waves("a", 30), unit_id="x", models=("a",)),
        loaded(waves("a", 30), waves("b", 7), unit_id="y"),
    ]
    rows = batch(run(*units, rate=0.0))
    counts = {
        (int(model), float(start)): int(
            ((rows["model"] == model) & (rows["arrival_s"] == start)).sum()
        )
        for model, start in set(
            zip(rows["model"].tolist(), rows["arrival_s"].tolist(), strict=True)
        )
    }
    assert counts[0, 0.0] == 60
    assert {count for (model, start), count in counts.items() if model == 0 and start} == {30}
    assert {count for (model, _), count in counts.items() if model == 1} == {7}


def test_waves_keep_a_unit_busy_to_their_end() -> None:
    result = simulate([loaded(waves(), models=("a",))], [], usage_bin_s=1.0)
    assert result.usage["u"].sm_share[: int(END_S)].min() > 0.2
    assert result.stats[0].models[0].output_tokens == result.records.rows["output_tokens"].sum()


def test_waves_that_can_never_run_are_an_error() -> None:
    too_long = Waves("a", 5, Independent(Constant(5000), Constant(9)), END_S)
    with pytest.raises(ValueError, match="no request of a wave of 'a' can run"):
        run(loaded(too_long))
    with pytest.raises(ValueError, match="1 request at least"):
        waves(size=0)
    with pytest.raises(ValueError, match="and an end"):
        Waves("a", 1, LENGTHS, float("inf"))
    with pytest.raises(KeyError):
        run(loaded(waves("nobody")))
