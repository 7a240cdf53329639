"""A unit's memory: the owner allocates it once, and workers map it."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from muxcluster.core.backends import DENSE, ENCODER, ModelBackend, paged_backend
from muxcluster.core.errors import LoadError
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.engine.adapters.weights import ModelAdapters, read_adapters
from muxcluster.engine.decoders.adapted import check_calls, linear_sizes, with_adapters
from muxcluster.engine.decoders.kernel_fusing import forward_on_gpu
from muxcluster.engine.forward.paged_forward import Forward, TokenForward
from muxcluster.engine.gpu.driver import Driver
from muxcluster.engine.gpu.memory.files import SharedFiles, opened
from muxcluster.engine.gpu.memory.ipc import DeviceExports, DeviceImports, check_plain_memory
from muxcluster.engine.gpu.memory.manifest import Manifest, Region, manifest_of, tensors_of
from muxcluster.engine.gpu.memory.model_tensors import put_tensors, tensors_in
from muxcluster.engine.load.hf_config import NotPaged, read_config, rounds_inputs, weight_format
from muxcluster.engine.load.merging import merge_products
from muxcluster.engine.load.paged_loading import load_model
from muxcluster.engine.load.parity import has_llama_layers
from muxcluster.engine.load.skeleton import skeleton
from muxcluster.engine.memory.arena import HOST, Arena
from muxcluster.engine.memory.pinning import pin
from muxcluster.engine.quantised.mxfp4_experts import put_experts
from muxcluster.engine.quantised.replacing import put_linears
from muxcluster.engine.steps.runner import UnitMemory

_NOT_HERE = "partition mps runs paged models only: use policy.partition green or none"


class OwnedMemory:
    """Weights, pool, tables, histories and host memory, each allocated once and exported.

    On a GPU the device's part is plain cudaMalloc, exported by CUDA IPC. Host memory, and on the
    CPU everything, lies in memory files that children inherit.
    """

    def __init__(self, spec: UnitSpec) -> None:
        """Raises LoadError as `load_model`, EngineFailure if memory cannot be exported."""
        self._device = torch.device(spec.device)
        self._files = SharedFiles()
        self._tensors: dict[str, Tensor] = {}
        self._models: dict[str, nn.Module] = {}
        for place, each in enumerate(spec.models):
            model = self._models[each.name] = _paged(each, spec.device)
            if spec.fuses_layers and has_llama_layers(model):
                merge_products(model, spec.device)  # so that no worker makes a copy of its own
            if self._device.type == "cpu":
                put_tensors(model, self._files.moved(tensors_in(model)))
            named = tensors_in(model).items()
            self._tensors |= {_weight(each.name, name): tensor for name, tensor in named}
            self._tensors |= self._adapters(place, each, model)
        self.backends = _backends(self._models)  # runs models: there is memory for that before
        self.arena = Arena(spec, self._take)
        self._exports: DeviceExports | None = None
        if self._device.type == "cuda":
            check_plain_memory()
            torch.cuda.synchronize(self._device)  # before anybody else reads
            torch.cuda.empty_cache()  # what loading took in passing is for the workers
            if self.arena.host.numel():  # in the owner alone: workers stage what crosses the bus
                pin(self.arena.host)
            self._exports = DeviceExports(Driver(index=self._device.index or 0))
        self.manifest = manifest_of(self._tensors, self._find)

    def _adapters(self, place: int, spec: ModelSpec, model: nn.Module) -> dict[str, Tensor]:
        """Load the adapters of the unit's model at `place`. Raises LoadError as `read_adapters`."""
        if spec.adapter_places:
            message = "adapter_places need workers of one process: policy.partition green or none"
            raise LoadError(Path(spec.path), message)
        if not spec.adapters:
            return {}
        found = read_adapters(model, spec, str(self._device)).tensors()
        if self._device.type == "cpu":
            found = self._files.moved(found)
        return {_adapter(place, name): tensor for name, tensor in found.items()}

    def _find(self, tensor: Tensor) -> tuple[Region, int]:
        if self._exports is not None and tensor.is_cuda:
            return self._exports.find(tensor)
        return self._files.find(tensor)

    def _take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if name == HOST or self._device.type == "cpu":
            tensor = self._files.zeros(shape, dtype)
        else:
            tensor = torch.zeros(shape, dtype=dtype, device=self._device)
        self._tensors[_arena(name)] = tensor
        return tensor


def _backends(models: Mapping[str, nn.Module]) -> tuple[ModelBackend, ...]:
    """Return how the models run."""
    windows = {name: Forward(model).windows for name, model in models.items()}
    return tuple(
        paged_backend(name, each, is_unordered=not any(each)) for name, each in windows.items()
    )


def _paged(spec: ModelSpec, device: str) -> nn.Module:
    """Load the model. Raises LoadError for another backend, whose parts cannot be mapped."""
    file = Path(spec.path, "config.json")
    if spec.backend in (DENSE, ENCODER):
        raise LoadError(file, f"backend {spec.backend}: {_NOT_HERE}")
    if spec.state_columns:
        message = "partition mps runs no models with states: use policy.partition green or none"
        raise LoadError(file, message)
    try:
        return load_model(spec, device)
    except NotPaged as refusal:
        raise LoadError(file, f"{refusal.reason}; {_NOT_HERE}") from refusal


def mapped_memory(spec: UnitSpec, manifest: Manifest) -> UnitMemory:
    """Return the owner's memory for a runner in this process.

    Raises EngineFailure: IPC is refused, and LoadError as `skeleton`.
    """
    device = torch.device(spec.device)
    tensors = tensors_of(manifest, device, _opener(device))

    def take(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        tensor = tensors[_arena(name)]
        assert (tuple(tensor.shape), tensor.dtype) == (shape, dtype), f"{name} is another"
        return tensor

    forwards: dict[str, TokenForward] = {}
    for place, each in enumerate(spec.models):
        model = skeleton(read_config(Path(each.path)), each).eval()
        _like_the_owners(model, each, tensors)
        names = tensors_in(model)
        put_tensors(model, {name: tensors[_weight(each.name, name)] for name in names})
        sizes = linear_sizes(model)
        forward = forward_on_gpu(model, each, fuses=spec.fuses_layers)
        if each.adapters:
            start = _adapter(place, "")
            mine = {n[len(start) :]: tensor for n, tensor in tensors.items() if n.startswith(start)}
            adapted = with_adapters(forward, ModelAdapters.of(each, mine), sizes)
            check_calls(adapted, each)
            forward = adapted
        forwards[each.name] = forward
    return UnitMemory(forwards, Arena(spec, take))


def _like_the_owners(model: nn.Module, spec: ModelSpec, tensors: Mapping[str, Tensor]) -> None:
    """Put quantised linears and experts where the owner's model has them."""
    if weight_format(spec) is None:
        return

    def tensor_of(name: str) -> Tensor | None:
        return tensors.get(_weight(spec.name, name))

    put_linears(model, tensor_of, rounds_inputs(spec, model))
    put_experts(model, tensor_of)


def _opener(device: torch.device) -> Callable[[Region], Tensor]:
    if device.type == "cpu":
        return opened
    imports = DeviceImports(Driver(index=device.index or 0), device)
    return lambda region: opened(region) if region.handle == b"" else imports.opened(region)


def _weight(model: str, name: str) -> str:
    return f"weights/{model}/{name}"


def _adapter(model: int, name: str) -> str:
    return f"adapters/{model}/{name}"


def _arena(name: str) -> str:
    return f"arena/{name}"
