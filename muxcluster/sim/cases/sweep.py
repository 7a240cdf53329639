"""Many cases on a few processes; cached results are not simulated again."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import active_children, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from signal import SIG_BLOCK, SIG_DFL, SIG_UNBLOCK, SIGINT, pthread_sigmask, signal
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from muxcluster.core.errors import ConfigError
from muxcluster.placement.plan import Plan
from muxcluster.placement.problem import Problem
from muxcluster.sim.cases.case import Case, run_case
from muxcluster.sim.cases.case_key import code_key, key_of
from muxcluster.sim.cases.systems_units import plan_of
from muxcluster.sim.report.report import CaseReport

Kept = TypeVar("Kept", bound=BaseModel)
# Called with (cases done, all cases) in the process that sweeps.
Progress = Callable[[int, int], None]
PartProgress = Callable[[float, int], None]
_TELL_PERIOD_S = 0.2


@dataclass(frozen=True, slots=True)
class Cache:
    """Plans and reports by key, one JSON file each, written atomically.

    A file that cannot be read counts as absent and is replaced; a folder that cannot be written
    raises ConfigError.
    """

    folder: Path | None = None  # None: nothing is kept
    _code: str = field(default_factory=code_key)

    def plan(self, method: str, problem: Problem) -> Plan:
        """Return `systems_units.plan_of`, cached."""
        key = key_of(self._code, method, problem)
        found = self._read(f"plan-{key}", Plan)
        if found is None:
            found = plan_of(method, problem)
            self._write(f"plan-{key}", found)
        return found

    def report(self, case: Case) -> CaseReport | None:
        """Return the cached report of a case; None where there is none."""
        return self._read(self._name(case), CaseReport)

    def keep(self, case: Case, report: CaseReport) -> None:
        """Cache the report of a case."""
        self._write(self._name(case), report)

    def _name(self, case: Case) -> str:
        return f"case-{key_of(self._code, case)}"

    def _read(self, name: str, kind: type[Kept]) -> Kept | None:
        if self.folder is None:
            return None
        try:
            return kind.model_validate_json((self.folder / f"{name}.json").read_bytes())
        except (OSError, ValidationError):
            return None

    def _write(self, name: str, value: BaseModel) -> None:
        if self.folder is None:
            return
        part = self.folder / f".{name}.{os.getpid()}.part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                part.write_text(value.model_dump_json(), encoding="utf-8")
                part.replace(self.folder / f"{name}.json")
            finally:
                part.unlink(missing_ok=True)
        except OSError as error:
            message = f"cannot be written: {error.strerror}"
            raise ConfigError(self.folder, "", message) from error


def _ignore(done: int, total: int) -> None:
    pass


def sweep(
    cases: Sequence[Case],
    cache: Cache | None = None,
    *,
    num_processes: int = 2,
    progress: Progress = _ignore,
    parts: PartProgress | None = None,
) -> list[CaseReport]:
    """Return the report of each case, in their order.

    Reports are cached as they come, so an interrupted sweep continues. parts: as `progress`, called
    within cases too, running ones counted in part. With one process or one case left it runs in
    this process; otherwise processes are spawned, so the caller's main module must be importable.
    Raises what `run_case` raises.
    """
    kept = Cache() if cache is None else cache
    reports = {index: kept.report(case) for index, case in enumerate(cases)}
    missing = [index for index, report in reports.items() if report is None]
    progress(len(cases) - len(missing), len(cases))

    def tell(running: float) -> None:
        if parts is not None:
            done = sum(each is not None for each in reports.values())
            parts(done + running, len(cases))

    for index, report in _simulated(cases, missing, num_processes, None if parts is None else tell):
        reports[index] = report
        kept.keep(cases[index], report)
        progress(sum(each is not None for each in reports.values()), len(cases))
    return [report for report in reports.values() if report is not None]


def _simulated(
    cases: Sequence[Case],
    missing: Sequence[int],
    num_processes: int,
    tell: Callable[[float], None] | None,
) -> Iterator[tuple[int, CaseReport]]:
    """Yield reports as cases end. tell: gets the sum of the parts of running cases."""
    if min(num_processes, len(missing)) <= 1:
        for index in missing:
            yield index, run_case(cases[index], on_part=tell)
        return
    others = set(active_children())
    context = get_context("spawn")
    shared = context.Array("d", len(cases), lock=False)
    with ProcessPoolExecutor(
        num_processes, mp_context=context, initializer=_begin, initargs=(shared,)
    ) as pool:
        # Processes start with Ctrl-C blocked: amid their imports it would print a traceback.
        pthread_sigmask(SIG_BLOCK, {SIGINT})
        try:
            futures: dict[Future[CaseReport], int] = {
                pool.submit(_run_shared, index, cases[index]): index for index in missing
            }
        finally:
            pthread_sigmask(SIG_UNBLOCK, {SIGINT})
        try:
            for future in _ended(futures, shared, tell):
                yield futures[future], future.result()
        except BaseException:
            _end(set(active_children()) - others)
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _ended(
    futures: Mapping[Future[CaseReport], int],
    shared: MutableSequence[float],
    tell: Callable[[float], None] | None,
) -> Iterator[Future[CaseReport]]:
    """Yield each future as it ends; meanwhile report running ones to `tell`."""
    running = set(futures)
    while running:
        ended, running = wait(running, _TELL_PERIOD_S, FIRST_COMPLETED)
        yield from ended
        if tell is not None:
            tell(sum(shared[futures[future]] for future in running))


# In a simulating process: the parts of all cases, shared with the process that sweeps.
_parts: MutableSequence[float] = []


def _begin(shared: MutableSequence[float]) -> None:
    global _parts
    _parts = shared
    signal(SIGINT, SIG_DFL)  # Ctrl-C reaches all processes: these end silently
    pthread_sigmask(SIG_UNBLOCK, {SIGINT})


def _run_shared(index: int, case: Case) -> CaseReport:
    def on_part(part: float) -> None:
        _parts[index] = part

    return run_case(case, on_part=on_part)


def _end(processes: Iterable[BaseProcess]) -> None:
    """Nobody waits for what they simulate."""
    for process in processes:
        process.terminate()
