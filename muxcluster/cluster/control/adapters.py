"""Adapters that operators load while their bases are served: which there are, kept in the GCS."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ray.exceptions import RayError

from muxcluster.cluster.control.store import read_adapters, write_adapters
from muxcluster.cluster.state.desired import Desired
from muxcluster.cluster.units.actors import find_actor
from muxcluster.core.inputs.adapters.load import (
    AdapterCheck,
    AdapterLoad,
    AdapterRefusal,
    LoadedAdapter,
)
from muxcluster.core.served import ServedModel

logger = logging.getLogger(__name__)

CHECK_S = 90.0  # longest time for a unit to read an adapter's files
MOST_LOADED = 1000


class LoadedAdapters:
    """What `/v1/load_lora_adapter` has loaded and nobody has unloaded since.

    A request carries its adapter's directory to its unit, whose workers read it when they need it:
    units need not be told of adapters, and a new one serves them at once.
    """

    def __init__(self) -> None:
        self._all = read_adapters()
        if self._all:
            write_adapters(self._all)  # in this version's form: the next may not read an older one
        self._lock = asyncio.Lock()

    def served(self, desired: Desired) -> tuple[ServedModel, ...]:
        """Return the adapters that are served beside the models of `desired`.

        Those whose base has gone, or no longer takes adapters, are kept but not served; of two of
        one name that of the configuration is.
        """
        with_places = bases_of(desired)
        bases = {model.name: model for model in desired.models if model.name in with_places}
        taken = {model.name for model in desired.models}
        found = []
        for each in self._all:
            base = bases.get(each.base)
            if base is not None and each.name not in taken:
                found.append(replace(base, name=each.name, base=each.base, loaded=each.loaded))
        return tuple(found)

    async def load(
        self, asked: AdapterLoad, desired: Desired, units: Sequence[tuple[str, frozenset[str]]]
    ) -> AdapterRefusal | ServedModel:
        """Have the base's units check an adapter, and serve it; return it as it is served then.

        units: those that serve, with their models.
        """
        async with self._lock:
            base = _base(asked, desired)
            if isinstance(base, AdapterRefusal):
                return base
            refusal = self._name_refusal(asked, desired)
            if refusal is not None:
                return refusal
            names = [name for name, models in units if base.name in models]
            loaded = await _checked(names, base.name, asked.path)
            if isinstance(loaded, AdapterRefusal):
                return loaded
            served = replace(base, name=asked.name, base=base.name, loaded=loaded)
            others = tuple(each for each in self._all if each.name != asked.name)
            self._keep((*others, served))
            logger.info("adapter %s of %s is served from %s", asked.name, base.name, asked.path)
            return served

    async def unload(self, name: str, desired: Desired) -> AdapterRefusal | None:
        """Serve an adapter no longer; requests that were accepted end with it."""
        async with self._lock:
            left = tuple(each for each in self._all if each.name != name)
            if len(left) < len(self._all):
                self._keep(left)
                logger.info("adapter %s is served no longer", name)
                return None
        if any(model.name == name for model in desired.models):
            message = f"{name} is of the configuration: change that, and run muxcluster up"
            return AdapterRefusal(message, param="lora_name")
        return AdapterRefusal(f"no adapter {name} is loaded", "model_not_found", "lora_name")

    def _name_refusal(self, asked: AdapterLoad, desired: Desired) -> AdapterRefusal | None:
        if any(model.name == asked.name for model in desired.models):
            message = f"{asked.name} is already the name of a model or adapter"
            return AdapterRefusal(message, param="lora_name")
        is_loaded = any(each.name == asked.name for each in self._all)
        if is_loaded and not asked.replaces:
            message = f"{asked.name} is already loaded: unload it first, or use load_inplace"
            return AdapterRefusal(message, param="lora_name")
        if not is_loaded and len(self._all) >= MOST_LOADED:
            return AdapterRefusal(f"{MOST_LOADED} adapters are loaded already: unload some")
        return None

    def _keep(self, adapters: tuple[ServedModel, ...]) -> None:
        write_adapters(adapters)
        self._all = adapters


def bases_of(desired: Desired) -> frozenset[str]:
    """Return the models that take adapters while they are served, placed or not."""
    sections = (model.section for model in desired.config.models)
    return frozenset(each.name for each in sections if each.adapter_places is not None)


def _base(asked: AdapterLoad, desired: Desired) -> ServedModel | AdapterRefusal:
    """Return the model that the adapter is for."""
    models = {model.name: model for model in desired.models if not model.base}
    bases = sorted(bases_of(desired) & models.keys())
    if asked.base is None:
        if len(bases) == 1:
            return models[bases[0]]
        message = "no model has places for adapters: set models[].adapter_places"
        if bases:
            message = f"for which of {', '.join(bases)}? Say it in base_model_name"
        return AdapterRefusal(message, param="base_model_name")
    if asked.base not in models:
        message = f"model {asked.base} is not served here"
        return AdapterRefusal(message, "model_not_found", "base_model_name")
    if asked.base not in bases:
        message = f"{asked.base} has no places for adapters: set its adapter_places"
        return AdapterRefusal(message, param="base_model_name")
    return models[asked.base]


async def _checked(units: Sequence[str], model: str, path: str) -> LoadedAdapter | AdapterRefusal:
    """Have all units of a model check the adapter in `path`, which must be the same for each."""
    if not units:
        return AdapterRefusal(f"no unit of {model} is up", "model_loading")
    found = await asyncio.gather(*(_check(unit, model, path) for unit in units))
    versions = set()
    for unit, check in zip(units, found, strict=True):
        if isinstance(check, AdapterRefusal):
            return check
        if check.problem:
            where = f"{unit}: " if len(units) > 1 else ""
            return AdapterRefusal(f"{where}{check.problem}", param="lora_path")
        versions.add(check.version)
    if len(versions) > 1:
        message = f"{path} holds another adapter on some nodes than on others"
        return AdapterRefusal(message, param="lora_path")
    return LoadedAdapter(path, versions.pop())


async def _check(unit: str, model: str, path: str) -> AdapterCheck | AdapterRefusal:
    """Ask a unit to check an adapter."""
    actor: Any = await asyncio.to_thread(find_actor, unit)
    if actor is not None:
        try:
            answer = actor.check_adapter.remote(model, path)
            found: AdapterCheck = await asyncio.wait_for(answer, CHECK_S)
            return found
        except (TimeoutError, RayError) as error:
            logger.warning("%s did not check an adapter: %s", unit, error)
    return AdapterRefusal(f"unit {unit} does not answer: try again", "model_loading")
