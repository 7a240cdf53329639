"""What-if plans of the controller, made in a process of their own."""

import asyncio
from collections.abc import Sequence
from typing import Any

from muxcluster.cluster.state.desired import Desired
from muxcluster.cluster.state.what_if import PlanRefusal, what_if
from muxcluster.core.errors import EngineFailure, MuxClusterError
from muxcluster.offline.process.side import SideProcess

LIMIT_S = 60.0  # of a plan, with the start of its process


class WhatIfPlanner:
    """Makes one plan at a time; refuses others meanwhile."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._is_busy = False

    async def plan(
        self, desired: Desired | None, changes: Sequence[str]
    ) -> dict[str, Any] | PlanRefusal:
        """Return the plan after `changes`, as `what_if`. desired: in force; None: none is yet.

        The process ends with the call, however that ends.
        """
        if desired is None or not desired.nodes:
            return PlanRefusal("there is no plan yet", "model_loading")
        if self._is_busy:
            return PlanRefusal("another what-if plan is being made", "rate_limit_exceeded")
        self._is_busy = True
        process = SideProcess()
        try:
            async with asyncio.timeout(self._limit_s):
                return await process.run(what_if, desired, list(changes))
        except TimeoutError:
            return PlanRefusal(f"planning takes longer than {self._limit_s:g} s")
        except EngineFailure as error:
            return PlanRefusal(str(error), "model_loading")
        except MuxClusterError as error:
            return PlanRefusal(str(error))
        finally:
            self._is_busy = False
            await asyncio.shield(asyncio.to_thread(process.close))
