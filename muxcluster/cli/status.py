"""`muxcluster status`: nodes, units and models of a running server."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from muxcluster.cli.keys import key_option
from muxcluster.core.errors import Unavailable
from muxcluster.core.inputs.web_url import checked_url

TIMEOUT_S = 10.0
# Columns of the table of models; quota, used and cached in blocks.
COLUMNS = MappingProxyType(
    {
        "running": "running",
        "waiting": "waiting",
        "quota_blocks": "quota",
        "used_blocks": "used",
        "cached_blocks": "cached",
        "rate_per_s": "req/s",
    }
)
# what an operator asked of a model's weights, while it holds
_ORDERS = {"hold": "held", "pin": "pinned", "park": "put away", "wake": "asked for"}
# of units whose weights move: "ahead" are wakes that nothing waited for, "used" those in time
_WEIGHT_COLUMNS = ("weights", "MiB, parked", "wakes", "ahead, used", "s a wake", "expected wait, s")
COMING = ("starting", "loading")  # phases of a unit that is starting
_PARTS = {"healthy", "nodes", "units", "rates", "missing_units", "unplaced"}  # of a server's state


def status(
    url: Annotated[
        str, typer.Option(envvar="MUXCLUSTER_URL", help="Where the server listens.")
    ] = "http://127.0.0.1:8000",
    address: Annotated[
        str | None, typer.Option(help="Ask through a Ray cluster instead, e.g. auto.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="MUXCLUSTER_API_KEY", callback=key_option, help="The server's key."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a running server does. Exit code 1 where none answers or a unit is down.

    Example: muxcluster status --url http://127.0.0.1:8000 --json
    """
    state = _through_http(url, api_key) if address is None else _through_ray(address)
    if as_json:
        typer.echo(json.dumps(state, indent=2))
    else:
        show(Console(), state)
    if not state["healthy"]:
        raise typer.Exit(1)


def _through_http(url: str, api_key: str | None) -> dict[str, Any]:
    checked_url(url)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    request = urllib.request.Request(f"{url.rstrip('/')}/status", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            state = json.load(answer)
    except urllib.error.HTTPError as error:
        raise Unavailable(f"{url} answers {error.code} {error.reason}") from error
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise Unavailable(f"no muxcluster server answers at {url}: {reason}") from error
    if not isinstance(state, dict) or not state.keys() >= _PARTS:
        raise Unavailable(f"no muxcluster server answers at {url}, but another one")
    return state


def _through_ray(address: str) -> dict[str, Any]:
    # Imported here: Ray takes a second to import, which HTTP users should not wait for.
    from muxcluster.cluster.attach import ask_status

    return ask_status(address, TIMEOUT_S)


def show(console: Console, state: Mapping[str, Any]) -> None:
    """Print nodes, a table of models per unit, planned and measured rates, and what is missing."""
    for node in state["nodes"]:
        alive = "alive" if node["alive"] else "[red]not reachable[/red]"
        resources = ", ".join(f"{count:g} {name}" for name, count in node["resources"].items())
        gpu = f" ({node['gpu']})" if node.get("gpu") else ""
        console.print(f"node {node['name']}: {alive}, {resources}{gpu}")
    for unit in state["units"]:
        console.print(_unit_table(unit))
    if state["rates"]:
        console.print(_rate_table(state["rates"]))
    if state["missing_units"]:
        is_loading = any(unit["phase"] in COMING for unit in state["units"])
        what = "not running yet" if is_loading else "[red]not running as planned[/red]"
        console.print(f"{what}: {', '.join(state['missing_units'])}")
    if state["unplaced"]:
        console.print(f"[red]no room for: {', '.join(state['unplaced'])}[/red]")


def _unit_table(unit: Mapping[str, Any]) -> Table:
    shares = ", ".join(f"{share:.0%}" for share in unit["sm_shares"])
    if (sharing := unit["sharing"]) is not None and not sharing["is_on"]:
        gains = f"gain {sharing['gain']:.2f}, of mixed jobs {sharing['mixed_gain']:.2f}"
        shares += f", not shared now ({gains})"
    gpus = ", ".join(str(gpu) for gpu in unit["gpus"])
    place = f"{unit['device']} of {unit['node']}, GPU {gpus}"
    blocks = f"{unit['num_blocks']} blocks"
    if unit["free_blocks"] is not None:
        blocks = f"{unit['free_blocks']} of {blocks} free"
    table = Table(title=f"{unit['id']} on {place}: {_health(unit)}; SM shares {shares}; {blocks}")
    table.add_column("model", no_wrap=True)
    table.add_column("backend", no_wrap=True)
    for title in COLUMNS.values():
        table.add_column(title, justify="right", no_wrap=True)
    # a server of an earlier version says nothing of weights
    is_parking = any(model.get("residency", "always") != "always" for model in unit["models"])
    if is_parking:
        for title in _WEIGHT_COLUMNS:
            table.add_column(title, justify="right", no_wrap=True)
    for model in unit["models"]:
        backend = model["backend"] or "loading"
        known = unit["free_blocks"] is not None  # else the unit has not reported yet
        numbers = (_number(model[column] if known else None) for column in COLUMNS)
        weights = _weights(model) if is_parking else ()
        table.add_row(model["name"], backend, *numbers, *weights)
    return table


def _weights(model: Mapping[str, Any]) -> tuple[str, ...]:
    """Where a model's weights are, how often they were woken, and what waits for them."""
    per_wake_s = model["waking_s"] / model["wakes"] if model["wakes"] else None
    # a server of an earlier version says nothing of orders
    order = _ORDERS.get(model.get("order") or "")
    kinds = ", ".join(filter(None, (model["residency"], order)))
    return (
        f"{model['weights'] or '–'} ({kinds})",
        _mebibytes(model["resident_bytes"], model.get("parked_bytes", 0)),
        _number(model["wakes"]),
        f"{model.get('wakes_ahead', 0)}, {model.get('wakes_ahead_used', 0)}",
        "–" if per_wake_s is None else f"{per_wake_s:.2f}",
        _number(model["expected_wait_s"]),
    )


def _mebibytes(resident: int, parked: int) -> str:
    """What a model takes while it is resident, and while it is parked."""
    return f"{resident / 2**20:.4g}, {parked / 2**20:.2g}" if resident else "–"


def _health(unit: Mapping[str, Any]) -> str:
    """Describe the unit's state; red if something is wrong."""
    state = "draining" if unit["draining"] else unit["phase"]
    if unit["healthy"]:
        state = "draining" if unit["draining"] else "healthy"
    elif state not in (*COMING, "draining"):
        state = f"[red]{state}[/red]"
    return f"{state} ({escape(unit['reason'])})" if unit["reason"] else state


def _number(value: float | None) -> str:
    """ "–" for what is not known yet."""
    return "–" if value is None else f"{value:g}"


def _rate_table(rates: Sequence[Mapping[str, Any]]) -> Table:
    """Requests/s: planned for, served by the plan, measured."""
    table = Table(title="requests/s")
    table.add_column("model", no_wrap=True)
    for title in ("planned", "plan serves", "measured"):
        table.add_column(title, justify="right", no_wrap=True)
    for rate in rates:
        numbers = (rate["planned_per_s"], rate["capacity_per_s"], rate["measured_per_s"])
        table.add_row(
            rate["model"], *("–" if number is None else f"{number:.3g}" for number in numbers)
        )
    return table
