"""`muxcluster park`: give back the memory of a model's weights."""

from typing import Annotated

import typer

from muxcluster.cli.batch.options import LOCAL, Json, Url
from muxcluster.cli.weights.server import AdminKey, ModelName, Timeout, Unit, move


def park(  # noqa: PLR0913 - each parameter is an option of the command line
    model: ModelName,
    hold: Annotated[
        bool, typer.Option("--hold", help="Refuse its requests until wake, instead of waking it.")
    ] = False,
    unit: Unit = None,
    url: Url = LOCAL,
    admin_key: AdminKey = None,
    timeout_s: Timeout = 600.0,
    as_json: Json = False,
) -> None:
    """Park MODEL on every unit that has it, and wait until its memory is free.

    Its next request wakes it, unless it is held. What runs may end first, or goes on after a wake.

    Examples: muxcluster park chat-7b
              muxcluster park chat-7b --hold
    """
    query = {"model": model, "unit": unit, "hold": "true" if hold else "false"}
    move(url, admin_key, "sleep", query, timeout_s, as_json=as_json)
