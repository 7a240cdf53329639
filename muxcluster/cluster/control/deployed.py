"""The controller as a Serve deployment, for `serve deploy`: it ends with its application."""

from typing import Any

from ray import serve

from muxcluster.cluster.control.controller import Controller, Wiring
from muxcluster.cluster.state.desired import Desired


class DeployedController(Controller):
    """A controller with a fixed desired state; the ingress is part of the Serve application."""

    def __init__(self, desired: Desired) -> None:
        super().__init__(Wiring())
        self.begin(desired, None)

    async def __del__(self) -> None:
        """Stop the units when Serve stops gracefully; after a kill the successor has the state."""
        await self.stop()


def controller_deployment(desired: Desired) -> Any:
    """Return a bound Serve deployment of the controller, which applies `desired`."""
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
