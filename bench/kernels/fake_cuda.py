"""A CUDA device that computes nothing, to run the engine's GPU path without a GPU.

Inside `FakeCuda`, tensors on "cuda" have a shape, a type and a device but no data (torch's fake
tensors); tensors on the CPU are real. Triton kernels are not launched: their wrappers check shapes
and choose grids as always, and the launch is noted with the key under which Triton would compile
it. Streams, events and graphs of `torch.cuda` are stubs that count.

What can be read off: the launches of a step in order, the peak bytes of its intermediate tensors,
the kernels it would compile, and (`lint`) whatever would keep it from being captured in a CUDA
graph. What a device says to the host is 0 everywhere, so nothing about values can be read off.

Run in a process where TRITON_INTERPRET is not set. Not thread-safe.
"""

import ctypes
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Literal
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime import jit

from bench.kernels.compiled import KernelTypes
from bench.kernels.cuda_stubs import GraphStubs
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.engine.forward.loaded_model import LoadedModel
from muxcluster.engine.forward.paged_forward import TokenForward
from muxcluster.engine.load.dummy import DummyWeights
from muxcluster.engine.memory.upload import PackedUpload
from muxcluster.engine.sampling.constrained import ConstrainedRows
from muxcluster.engine.sampling.parameters import SequenceSampling
from muxcluster.engine.sampling.prompt_positions import PromptPositions
from muxcluster.engine.steps.device.capture_lint import CaptureLint, NotCapturable
from muxcluster.engine.steps.device.decode_step import DecodeStep, buffers_of, decode_arrays
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.kernels.triton_ops.parts import prefill_tiling, splits

Kind = Literal["kernel", "operator", "library", "copy", "sync"]

ALLOCATION_BYTES = 512  # torch's caching allocator rounds every tensor up to a multiple of this

_CPU, _CUDA = 0, 1  # as in c10::DeviceType
_ADDRESS = 1 << 32
# Operators that are one call of a library, whatever it launches.
_LIBRARY = ("mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_mm", "_grouped_mm")
# Composite operators that a GPU runs as one call of a library: they are not taken apart.
_WHOLE = ("scaled_dot_product_attention", "_varlen_attn")
_ALLOCATIONS = ("empty", "empty_strided", "new_empty", "new_empty_strided", "empty_like")
_SAME_MEMORY = ("_unsafe_view", "_reshape_alias", "lift", "lift_fresh", "detach_")
_NO_LAUNCH = (*_ALLOCATIONS, *_SAME_MEMORY)
_SYNCS = ("_local_scalar_dense", "item", "is_nonzero", "equal")
_DATA_SHAPED = ("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive")


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that the host asks of the device."""

    # "kernel" (Triton), "operator" (of torch), "library" (a product of matrices, attention of
    # torch), "copy" (a transfer or a copy of a tensor), "sync" (the host waits for a value)
    kind: Kind
    name: str


# A Triton kernel's name, and types, divisibility and constants of one launch: compiled once.
KernelKey = tuple[str, str]


@dataclass(slots=True)
class Recording:
    """What happened while it was open."""

    operations: list[Operation] = field(default_factory=list)
    kernel_keys: set[KernelKey] = field(default_factory=set)
    kernel_types: set[KernelTypes] = field(default_factory=set)
    peak_bytes: int = 0  # of tensors made since it was opened
    base_bytes: int = 0

    @property
    def launches(self) -> list[Operation]:
        """All but syncs: each is at least one launch."""
        return [each for each in self.operations if each.kind != "sync"]

    @property
    def syncs(self) -> list[Operation]:
        """Where the host waited for the device."""
        return [each for each in self.operations if each.kind == "sync"]

    def count(self) -> Counter[str]:
        """Launches by name."""
        return Counter(each.name for each in self.launches)


class FakeCuda:
    """The devices "cuda:0" and on while it is entered; all calls are on the thread that entered."""

    def __init__(self, capability: tuple[int, int] = (9, 0), num_sms: int = 132) -> None:
        """capability, num_sms: what torch says of the device; by default those of an H100."""
        self.device = torch.device("cuda:0")
        self.graphs = GraphStubs()
        self._backend = make_backend(GPUTarget("cuda", capability[0] * 10 + capability[1], 32))
        self._binders: dict[Any, Callable[..., Any]] = {}
        self._recordings: list[Recording] = []
        self._stack = ExitStack()
        self._fakes = FakeTensorMode()
        self._mode = _DeviceMode(self)
        self._properties = SimpleNamespace(
            major=capability[0],
            minor=capability[1],
            multi_processor_count=num_sms,
            total_memory=80 * 2**30,
            name="fake CUDA device",
        )
        self._capability = capability
        self._live: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.live_bytes = 0

    def __enter__(self) -> "FakeCuda":
        stack = self._stack
        stack.enter_context(_guarded_device())
        stack.enter_context(self._fakes)  # before CUDA seems to be there, which it would start
        stack.enter_context(self.graphs.patched())
        for name, stub in (
            ("get_device_capability", lambda device=None: self._capability),
            ("get_device_properties", lambda device=None: self._properties),
            ("device_count", lambda: 8),
            ("is_available", lambda: True),
            ("synchronize", lambda device=None: None),
        ):
            stack.enter_context(mock.patch.object(torch.cuda, name, stub))
        stack.enter_context(mock.patch.object(jit.JITFunction, "run", self._launcher()))
        stack.enter_context(mock.patch.object(DummyWeights, "_whole", _without_values))
        stack.enter_context(mock.patch.object(torch.nn.Module, "_apply", _apply))
        for cached in (prefill_tiling.capability, splits.multiprocessors):
            cached.cache_clear()
            stack.callback(cached.cache_clear)
        stack.enter_context(self._mode)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        """Notes what happens inside."""
        recording = Recording(base_bytes=self.live_bytes)
        self._recordings.append(recording)
        try:
            yield recording
        finally:
            self._recordings.remove(recording)

    def lint(self) -> CaptureLint:
        """Inside, whatever a CUDA graph cannot capture raises NotCapturable."""
        return CaptureLint(self.device)

    def note(self, kind: Kind, name: str) -> None:
        """Tell all recordings."""
        for recording in self._recordings:
            recording.operations.append(Operation(kind, name))

    def faked(self, argument: Any) -> Any:
        """A real tensor as a fake one on the CPU; anything else as it is."""
        if not isinstance(argument, Tensor) or isinstance(argument, FakeTensor):
            return argument
        return self._fakes.from_tensor(argument)

    def track(self, tensor: Tensor) -> None:
        """Count the tensor's memory, if it is new, until it is freed."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live:
            return
        num_bytes = -(-storage.nbytes() // ALLOCATION_BYTES) * ALLOCATION_BYTES

        def freed(_: object) -> None:
            del self._live[key]
            self.live_bytes -= num_bytes

        self._live[key] = weakref.ref(storage, freed)
        self.live_bytes += num_bytes
        for recording in self._recordings:
            peak = self.live_bytes - recording.base_bytes
            recording.peak_bytes = max(recording.peak_bytes, peak)

    def _launcher(self) -> Callable[..., None]:
        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
            if kernel not in self._binders:
                self._binders[kernel] = jit.create_function_from_signature(
                    kernel.signature, kernel.params, self._backend
                )
            self._check_arguments(kernel, args)
            shown = [_Pointer.of(each) for each in args]
            _, specialization, found = self._binders[kernel](*shown, **options)
            key = jit.compute_cache_key({}, specialization, found)
            self.note("kernel", kernel.__name__)
            name = f"{kernel.__module__}.{kernel.__name__}"
            arguments = zip(kernel.arg_names, specialization, strict=True)
            types = tuple((at, kind, how == "D") for at, (kind, how) in arguments)
            variable = tuple(each for each in types if each[1] != "constexpr")
            for recording in self._recordings:
                recording.kernel_keys.add((name, key))
                recording.kernel_types.add(KernelTypes(name, variable))

        return run

    def _check_arguments(self, kernel: Any, args: Sequence[Any]) -> None:
        for each in args:
            if isinstance(each, Tensor) and not each.is_cuda:
                raise NotCapturable(f"{kernel.__name__} is launched on a tensor of the host")
            if isinstance(each, Tensor) and each.device.index != self.graphs.device_index:
                raise RuntimeError(
                    f"{kernel.__name__} is launched on cuda:{self.graphs.device_index}"
                )


@dataclass(frozen=True, slots=True)
class _Pointer:
    """A tensor as Triton sees it; memory begins at a multiple of 512, as torch allocates it."""

    dtype: torch.dtype
    address: int

    @staticmethod
    def of(argument: Any) -> Any:
        """Other arguments stay as they are."""
        if not isinstance(argument, Tensor):
            return argument
        return _Pointer(
            argument.dtype, _ADDRESS + int(argument.storage_offset()) * argument.itemsize
        )

    def data_ptr(self) -> int:
        return self.address


class _DeviceMode(TorchDispatchMode):
    """Sends operators of the host to the CPU, and notes those of the device."""

    def __init__(self, cuda: FakeCuda) -> None:
        super().__init__()
        self._cuda = cuda

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        if func is torch.ops.prim.device.default:
            return func(*args, **kwargs)
        if name not in _WHOLE and func._can_decompose():
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        target = kwargs.get("device")
        if not any(isinstance(each, FakeTensor) for each in tensors) and not _is_cuda(target):
            kwargs.pop("pin_memory", None)  # a build without CUDA has none
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        return self._on_device(func, name, args, kwargs, tensors)

    def _on_device(
        self, func: Any, name: str, args: Any, kwargs: Any, tensors: list[Tensor]
    ) -> Any:
        cuda = self._cuda
        if name in _SYNCS:
            cuda.note("sync", name)
            return _zero(torch.bool if name in ("is_nonzero", "equal") else tensors[0].dtype)
        if name in _DATA_SHAPED or _has_mask(func, args):
            cuda.note("sync", f"{name}, whose shape depends on values")
        if name == "copy_" and args[0].device != args[1].device:
            cuda.note("copy", name)
            return args[0]
        args, kwargs = tree_map(cuda.faked, (args, kwargs))
        result = func(*args, **kwargs)
        if not func.is_view and name not in _NO_LAUNCH:
            cuda.note(_kind(name), f"aten.{name}")
        return tree_map(self._placed, result)

    def _placed(self, result: Any) -> Any:
        """Tensors of the device are counted; what came to the host is real there."""
        if not isinstance(result, FakeTensor):
            return result
        if result.is_cuda:
            self._cuda.track(result)
            return result
        with unset_fake_temporarily():
            return torch.zeros(result.shape, dtype=result.dtype)


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _kind(name: str) -> Kind:
    if name in ("copy_", "_to_copy", "clone"):
        return "copy"
    return "library" if name in (*_LIBRARY, *_WHOLE) else "operator"


def _has_mask(func: Any, args: Any) -> bool:
    """Whether elements are picked by truth values: how many, only the device knows."""
    if func is not torch.ops.aten.index.Tensor:
        return False
    return any(isinstance(each, Tensor) and each.dtype == torch.bool for each in args[1])


def _zero(dtype: torch.dtype) -> Any:
    with unset_fake_temporarily():
        return torch.zeros((), dtype=dtype).item()


def _without_values(source: DummyWeights, name: str, like: Tensor) -> Tensor:
    """In the place of `DummyWeights._whole`, which would draw real numbers on the device."""
    return torch.empty(like.shape, dtype=like.dtype, device=source.device)


def _apply(module: Any, convert: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
    """In the place of `nn.Module._apply`, which refuses to turn real weights into fake ones.

    Ties of parameters that change are lost.
    """
    if recurse:
        for child in module.children():
            child._apply(convert)
    for name, parameter in module._parameters.items():
        converted = parameter if parameter is None else convert(parameter)
        if converted is not parameter:
            module._parameters[name] = torch.nn.Parameter(converted, requires_grad=False)
    for name, buffer in module._buffers.items():
        module._buffers[name] = buffer if buffer is None else convert(buffer)
    return module


@contextmanager
def _guarded_device() -> Iterator[None]:
    """Indexing and copying ask torch to make the tensor's device current, for which a build
    without CUDA has no code: meanwhile that of the CPU, which does nothing, stands in."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 2).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    before = guards[_CUDA]
    if before is None:
        guards[_CUDA] = guards[_CPU]
    try:
        yield
    finally:
        guards[_CUDA] = before


def load(unit: UnitSpec) -> tuple[LoadedModel, ...]:
    """The models of `unit`, whose device is "cuda:0", inside a `FakeCuda`.

    A model of load_format "dummy" needs no file but its config.json, and no memory.
    """
    memory = UnitRunner(unit).memory
    return tuple(_loaded(model, memory.forwards[model.name], memory.arena) for model in unit.models)


def _loaded(model: ModelSpec, forward: Any, arena: Any) -> LoadedModel:
    runs_tokens: TokenForward = forward
    sampling = SequenceSampling(model.num_rows, model.vocab_size, model.eos_token_ids)
    own = arena.model(model.name)
    constrained = ConstrainedRows(model, own.history, None)
    prompts = PromptPositions()
    return LoadedModel(
        model.name, runs_tokens, arena.pool, own, sampling, prompts, constrained, model.max_seqs
    )


def decode_step(model: LoadedModel, num_rows: int, *, shares: bool = False) -> DecodeStep:
    """A decode step of `num_rows` rows, as `DecodeGraphs` records it."""
    nobody = np.empty(0, dtype=np.int32)
    arrays = decode_arrays(model, nobody, nobody, np.full(num_rows, 0.5))
    buffers = buffers_of(PackedUpload(model.pool.device)(arrays))
    shape = (num_rows, model.sampling.vocab_size)
    logits = torch.empty(shape, dtype=torch.float32, device=model.pool.device)
    return DecodeStep(model, buffers, logits, shares=shares)
