"""Sweeps: kept by everything that decides a case, resumed, the same on two processes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from muxcluster.placement.execution import UnitPolicy
from muxcluster.placement.problem import Limits
from muxcluster.sim.cases import sweep as sweeping
from muxcluster.sim.cases.case import Case, run_case
from muxcluster.sim.cases.case_key import code_key, key_of
from muxcluster.sim.cases.sweep import Cache, sweep
from muxcluster.sim.cases.systems import system_named
from muxcluster.sim.report.report import CaseReport
from muxcluster.workload.lengths import Pairs
from tests.amounts import slow
from tests.sim.test_report import small_case


def same(reports: list[CaseReport]) -> list[CaseReport]:
    """Without what the clock on the wall said."""
    return [report.model_copy(update={"wall_s": 0.0}) for report in reports]


@pytest.fixture
def cases() -> list[Case]:
    """Three short ones."""
    first = replace(small_case(rate=1.0), duration_s=5.0)
    return [first, replace(first, seed=7), replace(first, rate_scale=2.0)]


def test_a_key_changes_with_everything_that_decides(cases: list[Case]) -> None:
    case = cases[0]
    demands = (replace(case.problem.demands[0], rate=4.5), *case.problem.demands[1:])
    others = [
        replace(case, system=system_named("temporal")),
        replace(case, system=replace(case.system, shares_sms=False)),
        replace(case, problem=replace(case.problem, demands=demands)),
        replace(case, plan=case.plan.model_copy(update={"units": case.plan.units[:1]})),
        replace(case, load=replace(case.load, sources=case.load.sources[:1])),
        replace(case, problem=replace(case.problem, limits=Limits(token_budget=512))),
        replace(case, problem=replace(case.problem, policy=UnitPolicy(partition="none"))),
        replace(case, duration_s=6.0),
        replace(case, seed=1),
        replace(case, slo_scale=9.0),
    ]
    keys = {key_of(each) for each in [case, *others]}
    assert len(keys) == len(others) + 1
    again = case.plan.model_copy(update={"solve_seconds": 99.0})
    assert key_of(replace(case, plan=again)) == key_of(case)
    assert code_key() == code_key()


def test_keys_see_into_arrays_and_refuse_what_they_do_not_know() -> None:
    first, second = (Pairs(np.array([1, 2, last]), np.ones(3, dtype=int)) for last in (3, 4))
    assert key_of(first) != key_of(second)
    assert key_of(Path("a"), {"x": 1}, {2, 1}) == key_of(Path("a"), {"x": 1}, {1, 2})
    with pytest.raises(TypeError, match="object"):
        key_of(object())


@pytest.mark.slow
def test_two_processes_give_what_one_gives_in_the_order_of_the_cases(cases: list[Case]) -> None:
    seen: list[tuple[int, int]] = []
    found = sweep(cases, num_processes=2, progress=lambda done, total: seen.append((done, total)))
    assert same(found) == same([run_case(case) for case in cases])
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("num_processes", [*slow(1), 2])
def test_parts_of_a_case_are_told(
    cases: list[Case], num_processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "_TELL_PERIOD_S", 0.01)
    long = [replace(case, duration_s=20 * case.duration_s) for case in cases[:2]]
    whole: list[tuple[int, int]] = []
    parts: list[tuple[float, int]] = []
    found = sweep(
        long,
        num_processes=num_processes,
        progress=lambda done, total: whole.append((done, total)),
        parts=lambda done, total: parts.append((done, total)),
    )
    assert same(found) == same([run_case(case) for case in long])
    assert whole == [(0, 2), (1, 2), (2, 2)]
    done = [each for each, _ in parts]
    assert len(set(done)) > 10 and all(0 <= each <= 2 for each in done)
    assert any(0 < each < 1 and each != int(each) for each in done)
    assert {total for _, total in parts} == {2}


def test_how_far_a_case_is_grows_to_its_end(cases: list[Case]) -> None:
    parts: list[float] = []
    case = replace(cases[0], duration_s=20 * cases[0].duration_s)
    report = run_case(case, on_part=parts.append)
    assert parts == sorted(parts) and len(parts) > 10
    assert parts[0] < 0.2 and 0.8 < parts[-1] <= 1
    assert same([report]) == same([run_case(case)])


def test_a_broken_sweep_goes_on_where_it_was(
    cases: list[Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    def counted(case: Case, on_part: None = None) -> CaseReport:
        ran.append(case.seed)
        return run_case(case)

    def broken(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(sweeping, "run_case", counted)
    cache = Cache(tmp_path / "kept")
    with pytest.raises(KeyboardInterrupt):
        sweep(cases, cache, num_processes=1, progress=broken)
    assert len(ran) == 2
    found = sweep(cases, cache, num_processes=1)
    assert len(ran) == 3
    assert sweep(cases, cache, num_processes=1) == found
    assert len(ran) == 3
    assert sorted(path.suffix for path in (tmp_path / "kept").iterdir()) == [".json"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("content", ["", '{"system": "x"}', "[]"])
def test_a_damaged_file_counts_as_absent(cases: list[Case], tmp_path: Path, content: str) -> None:
    cache = Cache(tmp_path)
    (before,) = sweep(cases[:1], cache)
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    assert cache.report(cases[0]) is None
    (after,) = sweep(cases[:1], cache)
    assert same([after]) == same([before])
    assert json.loads(file.read_text())["system"] == "muxserve"


def test_other_code_knows_nothing_of_old_results(cases: list[Case], tmp_path: Path) -> None:
    sweep(cases[:1], Cache(tmp_path, "before"))
    assert Cache(tmp_path, "before").report(cases[0]) is not None
    assert Cache(tmp_path, "after").report(cases[0]) is None


@pytest.mark.slow
def test_plans_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, problem = Cache(tmp_path), small_case().problem
    plan = cache.plan("greedy", problem)
    monkeypatch.setattr(sweeping, "plan_of", None)
    assert cache.plan("greedy", problem) == plan
    with pytest.raises(TypeError):
        cache.plan("spatial", problem)
