"""`muxcluster place`: what goes where, and what to expect of it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from muxcluster.config import load_config, plan_for
from muxcluster.core.errors import ConfigError
from placement.plan import Plan, PlannedUnit

COLUMNS = ("unit", "GPUs", "model", "prefill SM", "decode SM", "batch", "quota", "req/s")


def place(
    config: Annotated[Path, typer.Argument(help="muxcluster.yaml")],
    as_json: Annotated[bool, typer.Option("--json", help="Print plan.json.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write plan.json to this file.")] = None,
) -> None:
    """Plan which models of CONFIG share which GPUs; nothing is started, no weights are read.

    Exit code 2 where the file is wrong or the models do not fit.

    Example: muxcluster place muxcluster.yaml --out plan.json
    """
    plan = plan_for(load_config(config))
    if out is not None:
        _write(plan, out)
    if as_json:
        typer.echo(plan.to_json())
    else:
        _show(plan, Console(highlight=False))


def _write(plan: Plan, out: Path) -> None:
    try:
        out.write_text(plan.to_json() + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(out, "", f"cannot be written: {error.strerror}") from error


def _show(plan: Plan, console: Console) -> None:
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for unit in plan.units:
        for index, row in enumerate(_rows(unit)):
            table.add_row(*(row if index == 0 else ("", "", *row[2:])))
    console.print(table)
    console.print(_summary(plan))


def _rows(unit: PlannedUnit) -> list[tuple[str, ...]]:
    gpus = f"{unit.node}: {', '.join(map(str, unit.gpus))}"
    return [
        (
            unit.id,
            gpus,
            model.name,
            f"{model.prefill_sm:.0%}",
            f"{model.decode_sm:.0%}",
            f"{model.batch:.1f}",
            f"{model.quota_blocks} / {unit.kv_blocks}",
            f"{model.throughput:.2f}",
        )
        for model in unit.models
    ]


def _summary(plan: Plan) -> str:
    asked = "" if plan.bound is None else f" of the {plan.bound:.2f} asked for"
    return (
        f"{plan.method}: {plan.throughput:.2f} req/s{asked}, by the cost model; "
        "quota in KV blocks of the unit's pool"
    )
