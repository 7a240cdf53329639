"""The controller as a Serve deployment, for `serve deploy`: it goes with its application."""

from typing import Any

from ray import serve

from muxcluster.cluster.control.controller import Controller, Wiring
from muxcluster.cluster.state.desired import Desired


class DeployedController(Controller):
    """A controller with one thing to run from its start on; the application has the ingress."""

    def __init__(self, desired: Desired) -> None:
        super().__init__(Wiring())
        self.begin(desired, None)

    async def __del__(self) -> None:
        """Serve's hook at a graceful stop; after a kill the successor finds what is kept."""
        await self.stop()


def controller_deployment(desired: Desired) -> Any:
    """A bound Serve deployment of the one controller, which makes `desired` so."""
    deployment = serve.deployment(
        DeployedController,
        name="controller",
        num_replicas=1,
        max_ongoing_requests=1000,
        ray_actor_options={"num_cpus": 0.1},
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=30.0,
    )
    return deployment.bind(desired)
