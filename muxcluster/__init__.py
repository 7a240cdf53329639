"""muxcluster: many large language models on one shared GPU cluster, on Ray.

The public names are those of `__all__`. Each is imported when it is first used: planning and
simulating need neither torch nor Ray, serving needs the extra `serve` and no Ray.
"""

from importlib import import_module

__version__ = "0.1.0"

# Public names by the module of theirs that is imported for them; __init__.pyi has their types.
_NAMES = {
    "api.planning": ("Config", "Plan", "load_config", "plan"),
    "api.simulation": ("CaseReport", "simulate"),
    "api.sampling": ("SamplingParams",),
    "api.serving": ("Output", "Unit"),
    "core.errors": (
        "ConfigError",
        "EngineFailure",
        "InfeasiblePlan",
        "LoadError",
        "MuxClusterError",
        "RequestError",
        "Unavailable",
    ),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    """Import a public name. Raises ImportError with the extra to install where that is missing."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library in ("", __name__):
            raise
        message = f"muxcluster.{name} needs {library}: pip install 'muxcluster[serve]'"
        raise ImportError(message, name=library) from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
