"""`muxcluster serve`: the whole server in one process tree on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from muxcluster.cli.keys import key_option

_SUFFIXES = (".yaml", ".yml")


def serve(  # noqa: PLR0913 - each parameter is an option of the command line
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Hugging Face directories or ids (org/name, org/name@revision), served by the "
            "last part of their names; or one configuration, a file that ends in .yaml or .yml.",
        ),
    ],
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="MUXCLUSTER_API_KEY", callback=key_option, help="Key that clients must send."
        ),
    ] = None,
    admin_key: Annotated[
        str | None,
        typer.Option(
            envvar="MUXCLUSTER_ADMIN_KEY",
            callback=key_option,
            help="Key that may park, wake and pin models.",
        ),
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Name in the API, once for each MODEL, in their order. In a file: models[].name.",
        ),
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Longest prompt plus output of each MODEL, in tokens; by default the model's own. "
            "In a file: models[].max_model_len.",
        ),
    ] = None,
    lora_modules: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="A LoRA adapter of the only MODEL, in PEFT's format, served as a model of that "
            "name; may be repeated. In a file: models[].adapters.",
        ),
    ] = None,
    lenient: Annotated[
        bool | None, typer.Option("--lenient", help="Drop unknown request fields.")
    ] = None,
    drain_timeout: Annotated[
        float, typer.Option(min=0.0, help="Seconds that open requests get after SIGTERM.")
    ] = 30.0,
) -> None:
    """Serve models over HTTP until SIGINT or SIGTERM; options win over a file.

    Ids are looked up in Hugging Face's cache and downloaded where they are missing there: HF_HOME,
    HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE mean what they always do. Without a file the models
    share this machine's GPUs or, without GPUs, its cores.

    Examples: muxcluster serve Qwen/Qwen3-0.6B ./my-model --port 8000
              muxcluster serve muxcluster.yaml
    """
    file = _configuration(models)
    if file is not None and (served_model_name or max_model_len is not None or lora_modules):
        raise typer.BadParameter(
            f"--served-model-name, --max-model-len and --lora-modules go with models, not with a "
            f"file: say it in models[] of {file}"
        )
    from muxcluster.cli.server.models import NamedModels
    from muxcluster.cli.server.serving import Overrides, run_server

    named = NamedModels(models, served_model_name or (), max_model_len, lora_modules or ())
    overrides = Overrides(host, port, api_key, admin_key, lenient)
    run_server(named if file is None else file, overrides, drain_timeout)


def _configuration(models: list[str]) -> Path | None:
    """Return the configuration file among the arguments, None if there are only models."""
    files = [each for each in models if each.lower().endswith(_SUFFIXES)]
    if files and len(models) > 1:
        others = [each for each in models if each != files[0]] or files[1:]
        raise typer.BadParameter(
            f"{files[0]} is a configuration, so {others[0]} cannot stand beside it: give one file, "
            "or models"
        )
    return Path(files[0]) if files else None
