"""Green contexts and memory of other processes, through the CUDA driver API (12.4 and later)."""

# torch.cuda.green_contexts splits the device again for every context, and nothing says that the
# parts of two split calls are apart (pytorch issue 195378). Prefill and decode side by side need
# contexts that are apart, so the device is split once here, and every context is made of groups of
# that split.

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

_SM_RESOURCE = 1
_DEFAULT_GROUP_SMS = 8  # of compute capability 9.0; drivers before 13.0 do not report it
_DEFAULT_STREAM = 1
_NON_BLOCKING = 1
_LAZY_PEER_ACCESS = 1
HANDLE_BYTES = 64


class DriverError(Exception):
    """The driver refused a call; the message has the driver's own name for the reason."""


class SmResource(ctypes.Structure):
    """CUdevResource: 144 bytes since 12.4; the SM count stands after the padding."""

    # What the driver keeps in the padding travels with a copy.

    _fields_ = [
        ("type", c_int),
        ("padding", ctypes.c_ubyte * 92),
        ("sm_count", c_uint),
        ("min_partition", c_uint),
        ("alignment", c_uint),
        ("rest", ctypes.c_ubyte * 36),
    ]


assert ctypes.sizeof(SmResource) == 144


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle, which the driver takes by value."""

    _fields_ = [("reserved", ctypes.c_ubyte * HANDLE_BYTES)]


@dataclass(frozen=True, slots=True)
class GreenContext:
    """A green context and a stream on its multiprocessors."""

    sm_count: int  # multiprocessors granted
    stream: int  # a stream whose work stays on them
    context: int  # made current instead of using the stream
    handle: int  # the green context itself


@dataclass(frozen=True, slots=True)
class SmSplit:
    """All multiprocessors of a device, divided by one call."""

    groups: tuple[SmResource, ...]  # of equal size, no two with a multiprocessor in common
    rest: SmResource | None  # multiprocessors in no group, None if there are none
    # True if a context may have groups and the rest: the driver requires the same alignment of all
    # resources of a context
    combines_rest: bool

    @property
    def group_sms(self) -> int:
        return int(self.groups[0].sm_count)

    @property
    def num_sms(self) -> int:
        rest = self.rest.sm_count if self.rest is not None else 0
        return len(self.groups) * self.group_sms + int(rest)


class Driver:
    """The driver of one device; its primary context must exist (torch makes it).

    library: the driver's functions, None: the system's library. Every call raises DriverError.
    """

    def __init__(self, library: Any = None, index: int = 0) -> None:
        """Raises OSError where there is no driver."""
        self._library = ctypes.CDLL("libcuda.so.1") if library is None else library
        self._call("cuInit", c_uint(0))
        self._device = c_int()
        self._call("cuDeviceGet", byref(self._device), c_int(index))

    def version(self) -> str:
        """Return the newest CUDA version that the driver supports."""
        number = c_int()
        self._call("cuDriverGetVersion", byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def split(self) -> SmSplit:
        """Divide all multiprocessors into the smallest groups whose blocks may form clusters.

        Call it once: only resources of one split may be combined in a context and are known to be
        apart.
        """
        whole, rest = SmResource(), SmResource()
        self._call("cuDeviceGetDevResource", self._device, byref(whole), c_int(_SM_RESOURCE))
        size = c_uint(max(whole.min_partition, whole.alignment) or _DEFAULT_GROUP_SMS)
        count = c_uint(0)
        arguments = (byref(whole), byref(rest), c_uint(0), size)
        self._call("cuDevSmResourceSplitByCount", None, byref(count), *arguments)
        groups = (SmResource * count.value)()
        self._call("cuDevSmResourceSplitByCount", groups, byref(count), *arguments)
        if not count.value:
            raise DriverError(f"{whole.sm_count} multiprocessors make no group of {size.value}")
        return SmSplit(
            tuple(groups[: count.value]),
            rest if rest.sm_count else None,
            combines_rest=bool(rest.sm_count) and rest.alignment == groups[0].alignment,
        )

    def create(self, resources: Sequence[SmResource]) -> GreenContext:
        """Create a green context of `resources`, which are of one split."""
        array = (SmResource * len(resources))(*resources)
        descriptor, handle, stream, context = (c_void_p() for _ in range(4))
        self._call("cuDevResourceGenerateDesc", byref(descriptor), array, c_uint(len(resources)))
        self._call(
            "cuGreenCtxCreate", byref(handle), descriptor, self._device, c_uint(_DEFAULT_STREAM)
        )
        self._call("cuGreenCtxStreamCreate", byref(stream), handle, c_uint(_NON_BLOCKING), c_int(0))
        self._call("cuCtxFromGreenCtx", byref(context), handle)
        values = (stream.value, context.value, handle.value)
        sm_count = sum(int(resource.sm_count) for resource in resources)
        return GreenContext(sm_count, *(value or 0 for value in values))

    def destroy(self, green: GreenContext) -> None:
        """Destroy the context and its stream, which must be idle."""
        self._call("cuStreamDestroy_v2", c_void_p(green.stream))
        self._call("cuGreenCtxDestroy", c_void_p(green.handle))

    def push(self, green: GreenContext) -> None:
        """Make the context this thread's current one."""
        self._call("cuCtxPushCurrent_v2", c_void_p(green.context))

    def pop(self) -> None:
        """Make the context before `push` the current one again."""
        before = c_void_p()
        self._call("cuCtxPopCurrent_v2", byref(before))

    def allocation(self, address: int) -> tuple[int, int]:
        """Return first address and bytes of the allocation that contains `address`."""
        base, num_bytes = c_uint64(), c_size_t()
        self._call("cuMemGetAddressRange_v2", byref(base), byref(num_bytes), c_uint64(address))
        return base.value, num_bytes.value

    def handle(self, base: int) -> bytes:
        """Return a handle to map the allocation that begins at `base` in another process."""
        handle = IpcHandle()
        self._call("cuIpcGetMemHandle", byref(handle), c_uint64(base))
        return bytes(handle)

    def open_handle(self, handle: bytes) -> int:
        """Map an allocation of another process, once per process; return its address here."""
        address = c_uint64()
        given = IpcHandle.from_buffer_copy(handle)
        self._call("cuIpcOpenMemHandle_v2", byref(address), given, c_uint(_LAZY_PEER_ACCESS))
        return address.value

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError as missing:
            raise DriverError(f"{name} is not in this driver") from missing
        code = function(*arguments)
        if code:
            raise DriverError(f"{name}: {self._name_of(code)}")

    def _name_of(self, code: int) -> str:
        name = c_char_p()
        self._library.cuGetErrorName(c_int(code), byref(name))
        return f"{(name.value or b'unknown error').decode()} ({code})"
