"""What operators, controller and units tell each other of adapters that come while a base runs."""

from dataclasses import dataclass

from muxcluster.core.inputs.carried import Carried

_MARK = "@"  # in no name of a model or adapter


@dataclass(frozen=True, slots=True)
class AdapterLoad(Carried):
    """An operator's wish that an adapter be served from now on."""

    name: str  # of the model that it makes
    path: str  # absolute directory in PEFT's format, the same on every node of the base's units
    base: str | None = None  # None: the only model that takes such adapters
    replaces: bool = False  # an adapter of that name, loaded before, gives way


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """Where an adapter is that was loaded while its base ran, and which of its name it is."""

    path: str
    version: str  # digest of its files

    def unit_id(self, name: str) -> str:
        """Return what units call it, so that caches never take it for another of its name."""
        return f"{name}{_MARK}{self.version}"


def version_in(unit_id: str) -> str:
    """Return the version in what `LoadedAdapter.unit_id` returns."""
    return unit_id.rpartition(_MARK)[2]


@dataclass(frozen=True, slots=True)
class AdapterCheck(Carried):
    """What a unit found in an adapter's files."""

    version: str = ""  # as `LoadedAdapter.version`; empty where there is a problem
    problem: str = ""  # why its base cannot take it, naming file and tensor


@dataclass(frozen=True, slots=True)
class AdapterRefusal(Carried):
    """Why the controller did not load or unload an adapter; a value, as Ray hides errors."""

    message: str
    code: str = "invalid_value"  # or "model_not_found", "model_loading"
    param: str | None = None  # field of the operator's request
