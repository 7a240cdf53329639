"""What `park`, `wake` and `pin` have in common: their options, and the call to the server."""

import http.client
import json
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from muxcluster.cli.keys import key_option
from muxcluster.cli.terminal.asking import answer_at, bearer
from muxcluster.core.errors import Unavailable
from muxcluster.core.inputs.web_url import checked_url

ModelName = Annotated[str, typer.Argument(help="Name of the model, as the server has it.")]
Unit = Annotated[str | None, typer.Option(help="Only this unit, as status names it.")]
AdminKey = Annotated[
    str | None,
    typer.Option(
        envvar="MUXCLUSTER_ADMIN_KEY", callback=key_option, help="The server's admin key."
    ),
]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds to wait until it is done.")]
_GRACE_S = 5.0  # in which a server answers that the time is over


def move(
    url: str,
    admin_key: str | None,
    path: str,
    query: Mapping[str, str | None],
    timeout_s: float,
    *,
    as_json: bool,
) -> None:
    """Send an order to the server and print where the weights are then.

    Raises ConfigError where the server refuses it, Unavailable where it does not answer, cannot do
    it, or not within `timeout_s`.
    """
    checked_url(url)
    server = url.rstrip("/").removesuffix("/v1")
    given = {name: value for name, value in query.items() if value is not None}
    headers = {**bearer(admin_key), "X-Request-Timeout-Seconds": f"{timeout_s:g}"}
    target = f"{path}?{urlencode(given)}"
    with answer_at(server, target, b"", headers, timeout_s + _GRACE_S) as answer:
        found = _read(server, answer)
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(_lines(found)))


def _read(server: str, answer: http.client.HTTPResponse) -> dict[str, Any]:
    try:
        found = json.loads(answer.read())
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
        raise Unavailable(f"{server} does not answer in JSON: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("units"), dict):
        raise Unavailable(f"no muxcluster server answers at {server}, but another one")
    return found


def _lines(found: Mapping[str, Any]) -> list[str]:
    return [
        f"{found['model']} on {unit}: {state['weights']}"
        + (f" ({state['order']})" if state["order"] else "")
        for unit, state in found["units"].items()
    ]
