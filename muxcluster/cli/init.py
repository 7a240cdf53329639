"""`muxcluster init`: a first configuration from what is there."""

import os
from pathlib import Path
from typing import Annotated

import typer

from muxcluster.cli.found.gpus import seen_gpus
from muxcluster.cli.found.models import Model, Unserved
from muxcluster.cli.found.sources import found_in
from muxcluster.cli.found.written import yaml_text
from muxcluster.cli.placing.files import write_bytes
from muxcluster.cli.terminal.telling import tell
from muxcluster.core.errors import ConfigError


def init(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE",
            help="Model directories, folders to search, Hugging Face ids, a llama-swap file, or a "
            "script with vllm serve lines; by default this folder and Hugging Face's cache.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file to write; -: standard output.")
    ] = Path("muxcluster.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a commented muxcluster.yaml for the models of SOURCE and the GPUs of this machine.

    What cannot be served, GGUF files for example, is named with the reason. Nothing is downloaded.

    Examples: muxcluster init /models
              muxcluster init llama-swap.yaml --out muxcluster.yaml
    """
    is_stdout = str(out) == "-"
    if not is_stdout and not force and os.path.lexists(out):
        raise ConfigError(out, "", "is there already: --force replaces it, --out names another")
    found = found_in(sources or [])
    models = [each for each in found if isinstance(each, Model)]
    unserved = [each for each in found if isinstance(each, Unserved)]
    if not models:
        raise ConfigError(", ".join(sources or ["this folder and the cache"]), "", _empty(unserved))
    for each in unserved:
        tell(f"not served: {each.what}: {each.why}")
    text = yaml_text(found, seen_gpus())
    if is_stdout:
        typer.echo(text, nl=False)
        return
    write_bytes(out, text.encode())
    names = ", ".join(model.name for model in models)
    typer.echo(f"{out}: {len(models)} model(s): {names}")
    typer.echo(f"next: muxcluster place {out}; muxcluster serve {out}")


def _empty(unserved: list[Unserved]) -> str:
    """Return why there is nothing to write."""
    if not unserved:
        return "no model was found: name a directory or a Hugging Face id"
    more = f" (and {len(unserved) - 1} more)" if len(unserved) > 1 else ""
    return f"nothing that can be served: {unserved[0].what}: {unserved[0].why}{more}"
