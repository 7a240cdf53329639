"""`muxcluster COMMAND`: find the command, import only its module, turn errors into exit codes.

Exit codes: 0 done, 1 failed, 2 bad input or infeasible plan, 130 interrupted.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer

from muxcluster.core.errors import ConfigError, InfeasiblePlan, LoadError, MuxClusterError

# Command -> one line of help. `x` is the function `x` of module `muxcluster.cli.x`, imported only
# when it is called: `place` needs neither torch nor Ray.
COMMANDS = {
    "place": "Plan which models share which GPUs, without starting anything.",
    "simulate": "Compare policies on a virtual clock, on GPUs that need not exist.",
    "batch": "Run files of requests, here or on a server; predict how long they take.",
    "init": "Write a first muxcluster.yaml from models, GPUs or another server's file.",
    "profile": "Measure how long jobs take on this machine, for the planner.",
    "serve": "Serve models over HTTP from this machine.",
    "chat": "Talk to a model of a running server.",
    "up": "Make a Ray cluster serve what a file says, and change what it serves.",
    "down": "Stop what up started, on every node.",
    "bench": "Measure a running server the way vLLM's bench does.",
    "status": "Show what a running server does.",
    "top": "Show what a running server does, each second.",
    "trace": "Show where the time of one request went.",
    "park": "Give back the memory of a model's weights on a running server.",
    "wake": "Bring a parked model's weights back.",
    "pin": "Keep a model's weights from being parked.",
    "usage": "Show what each key used of each model on each day.",
    "demo": "Serve three small models and send them a burst of requests.",
}

# Commands of several actions, each with its line of help.
GROUPS = {
    "batch": {
        "plan": "Predict how long a job takes in each order.",
        "run": "Run a job on this machine, without a server.",
        "submit": "Hand a job to a server.",
        "status": "Show how far a server's batches are.",
        "wait": "Wait for the end of a server's batch.",
        "cancel": "End a server's batch with what it has.",
        "results": "Bring the answers of a server's batch.",
    },
}
# Where commands that are not in this folder are, and the actions of a command: `y` is the function
# `y` of module `y` there.
FOLDERS = {
    "batch": "batch.",
    "park": "weights.",
    "wake": "weights.",
    "pin": "weights.",
    "top": "watching.",
    "trace": "watching.",
}

# Raised by typer for a wrong command line; it has no public name.
_USAGE_ERROR: Any = typer.BadParameter.__base__
# These end a command with exit code 2, every other error with 1.
BAD_INPUT = (ConfigError, InfeasiblePlan, LoadError)
# Extras by module; all other modules that the base install lacks are in `serve`.
_EXTRAS = {"matplotlib": "plot", "triton": "gpu"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line (sys.argv by default) and exit with its code."""
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run one command; return the exit code. Errors are one line on stderr."""
    try:
        code = _app(arguments)(args=arguments, prog_name="muxcluster", standalone_mode=False)
    except _USAGE_ERROR as error:
        return _fail(error.format_message(), 2)
    except BAD_INPUT as error:
        return _fail(str(error), 2)
    except MuxClusterError as error:
        return _fail(str(error), 1)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except ImportError as error:
        return _fail(_install_hint(arguments, error), 2)
    return code if isinstance(code, int) else 0


def _install_hint(arguments: Sequence[str], error: ImportError) -> str:
    """Name the extra with the library that `error` misses. Reraises if the mistake is ours."""
    library = (error.name or "").partition(".")[0]
    if not library or library in ("muxcluster", *sys.stdlib_module_names):
        raise error
    words = [word for word in arguments if not word.startswith("-")]
    command = " ".join(words[: 2 if words[:1] and words[0] in GROUPS else 1])
    extra = _EXTRAS.get(library, "serve")
    if isinstance(error, ModuleNotFoundError):
        return f"{command} needs {library}: pip install 'muxcluster[{extra}]'"
    return f"{command} needs another {library} ({error}): pip install 'muxcluster[{extra}]'"


def _app(arguments: Sequence[str]) -> typer.Typer:
    """Return all commands by name; only the one that `arguments` call is imported."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(_root)
    called = [word for word in arguments if not word.startswith("-")]
    for name, summary in COMMANDS.items():
        if name in GROUPS:
            app.add_typer(_group(name, called), name=name, help=summary)
            continue
        is_called = called[:1] == [name]
        function = _load(FOLDERS.get(name, "") + name, name) if is_called else _listed
        app.command(name, short_help=summary)(function)
    return app


def _group(name: str, called: Sequence[str]) -> typer.Typer:
    group = typer.Typer()
    group.callback(invoke_without_command=True)(_overview)
    for action, summary in GROUPS[name].items():
        is_called = called[:2] == [name, action]
        function = _load(FOLDERS[name] + action, action) if is_called else _listed
        group.command(action, short_help=summary)(function)
    return group


def _load(module: str, name: str) -> Callable[..., None]:
    function: Callable[..., None] = getattr(import_module(f"muxcluster.cli.{module}"), name)
    return function


def _listed() -> None:
    """Stand for a command in the overview; never called."""


def _root(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """Serve many large language models on one shared GPU cluster.

    Example: muxcluster serve muxcluster.yaml
    """
    if show_version:
        typer.echo(f"muxcluster {version('muxcluster')}")
        raise typer.Exit
    _overview(context)


def _overview(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def _fail(message: str, code: int) -> int:
    text = " ".join(message.split())
    # a path of bytes that are no text must not hide what is said of it
    text = text.encode(errors="backslashreplace").decode()
    typer.echo(f"muxcluster: {text}", err=True)
    return code


if __name__ == "__main__":
    main()
