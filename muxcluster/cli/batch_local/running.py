"""A job on this machine, from file to output, with its progress on the terminal."""

import asyncio
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from muxcluster.batch.plan.planner import FedPlanner, PlanRules
from muxcluster.batch.plan.setting import settings_of
from muxcluster.batch.service.planning import Planner
from muxcluster.batch.service.progress import Progress as JobProgress
from muxcluster.batch.service.runner import BatchRunner, Ended, RunnerSettings
from muxcluster.batch.store.intake import Intake, Limits
from muxcluster.batch.store.job import OPEN, Batch, Status
from muxcluster.batch.store.store import BatchStore
from muxcluster.cli.batch_local.units import LocalService, local_service, local_specs
from muxcluster.config.load import Config
from muxcluster.http.batch_lines import LineAnswerer
from muxcluster.http.settings import ApiSettings, QueueLimits
from muxcluster.sim.batch.setting import Setting

REFRESH_S = 0.5
_MOST_UNPLANNED = 256  # lines without a plan that run at a time
_COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[speed]}"),
)


@dataclass(frozen=True, slots=True)
class RunReport:
    """A job that has ended."""

    batch: Batch
    progress: JobProgress | None  # of this run; None if there was nothing left to run
    orders: Mapping[str, str]  # by model
    seconds: float  # of this run, including loading and planning
    # Models that ran one after another although they share units
    in_turn: Sequence[Sequence[str]] = ()


class LocalRun:
    """A job whose inputs were checked, before its models are loaded."""

    def __init__(self, config: Config, order: str, console: Console) -> None:
        """Check the inputs. Raises ConfigError, InfeasiblePlan, LoadError."""
        self._config = config
        self._order = order
        self._console = console
        self._specs = local_specs(config)
        self._settings = {
            model.name: settings_of(config, model.name, None) for model in config.models
        }

    def run(self, store: BatchStore, batch: Batch) -> RunReport:
        """Run until the last line has ended; no model is loaded if none can run.

        Raises StorageFailed, EngineFailure; KeyboardInterrupt after SIGINT or SIGTERM, when all
        processes are gone.
        """
        if batch.status is Status.VALIDATING:
            intake = Intake(store, batch, self._settings, Limits())
            batch = intake.run(int(time.time()))
        if batch.status not in OPEN:
            return RunReport(batch, None, {}, 0.0)
        return asyncio.run(self._stoppable(store, batch))

    async def _stoppable(self, store: BatchStore, batch: Batch) -> RunReport:
        work = asyncio.create_task(self._run(store, batch))
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, work.cancel)
        try:
            return await work
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    async def _run(self, store: BatchStore, batch: Batch) -> RunReport:
        started_s = time.monotonic()
        queues = QueueLimits(batch=2**20)
        settings = ApiSettings(queues=queues)
        async with local_service(self._config, self._specs, settings) as local:
            planner = local_planner(local, self._settings, self._order)
            runner = local_runner(store, local, planner, list(self._settings))
            try:
                ended = await self._watched(runner, batch, local)
            finally:
                await asyncio.to_thread(planner.close)
        seconds = time.monotonic() - started_s
        plan = planner.latest
        orders, in_turn = ({}, ()) if plan is None else (plan.orders, plan.in_turn)
        return RunReport(ended.batch, ended.progress, orders, seconds, in_turn)

    async def _watched(self, runner: BatchRunner, batch: Batch, local: LocalService) -> Ended:
        """Run the batch while the terminal shows its progress."""
        work = asyncio.create_task(runner.run(batch.batch_id))
        try:
            with Progress(*_COLUMNS, console=self._console, transient=True) as bar:
                shown = bar.add_task("loading", total=None, speed="")
                while not (await asyncio.wait((work,), timeout=REFRESH_S))[0]:
                    local.check()
                    progress = runner.progress(batch.batch_id)
                    if progress is not None:
                        bar.update(
                            shown,
                            description="running" if progress.weight_done else "planning",
                            total=progress.num_total,
                            completed=progress.num_ended,
                            speed=speed_text(progress),
                        )
            return work.result()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


def local_planner(
    local: LocalService, settings: Mapping[str, Sequence[Setting]], order: str
) -> FedPlanner:
    """Return a planner that feeds the units of `local`, to be closed.

    settings: by model, the units that serve it.
    """

    async def present() -> Mapping[str, Sequence[Setting]]:
        return settings

    rules = PlanRules(order, lenient=False, most_unplanned=_MOST_UNPLANNED)
    return FedPlanner(local.texts, present, local.parts, rules, local.kept)


def local_runner(
    store: BatchStore, local: LocalService, planner: Planner, models: Sequence[str]
) -> BatchRunner:
    answerer = LineAnswerer(local.service, lenient=False, kept=local.kept)
    settings = RunnerSettings(window=_MOST_UNPLANNED)
    return BatchRunner(store, answerer, planner, lambda: models, settings)


def speed_text(progress: JobProgress) -> str:
    """Tokens per second, share of prompts found in the cache, and expected end."""
    use = progress.use
    if not use.prompt:
        return ""
    parts = [f"{(use.prompt + use.output) / progress.elapsed_s:.0f} tokens/s"]
    parts.append(f"{use.cached / use.prompt:.0%} of the prompts shared")
    left_s = progress.left_s()
    if left_s:
        parts.append(f"{left_s:.0f} s left")
    return ", ".join(parts)
