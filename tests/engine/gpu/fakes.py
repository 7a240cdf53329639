"""A CUDA driver and a control program that record what they are asked."""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SMS = 132
INVALID_CONFIGURATION = 915


@dataclass
class _Given:
    """What the driver knows of a resource that a split call gave out."""

    split: int
    ids: frozenset[int]


class FakeCuda:
    """A GPU of `sms` multiprocessors and its memory.

    A split makes groups of 8, as a GPC of 16 or 18 holds them, and leaves what no group has. Each
    split call deals the multiprocessors anew, so parts of two calls overlap. Resources are known by
    what the driver keeps in their padding; a context is made of resources of one split and of one
    alignment, or refused.

    calls: names in order. refuses: the call that fails, with the error's name. rest_alignment: of
    what no group has. reports: whether the resource says its alignment (drivers from 13.0 on).
    Streams are numbered as they are made; `sms` says which multiprocessors a stream runs on.
    """

    def __init__(
        self,
        refuses: str = "",
        error: str = "CUDA_ERROR_INVALID_VALUE",
        *,
        rest_alignment: int = 8,
        num_groups: int = SMS // 8,
        reports: bool = True,
    ) -> None:
        self.calls: list[str] = []
        self.sms: dict[int, frozenset[int]] = {}
        self._refuses = refuses
        self._error = error.encode()
        self._alignments = (8, rest_alignment) if reports else (0, 0)
        self._num_groups = num_groups
        self._num_splits = 0
        self._given: list[_Given] = []
        self._pending = frozenset[int]()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == self._refuses:
                return 1
            return getattr(self, f"_{name}", lambda *_: 0)(*arguments) or 0

        return call

    def _cuDeviceGetDevResource(self, device: Any, resource: Any, kind: ctypes.c_int) -> None:
        assert kind.value == 1
        resource._obj.sm_count = SMS
        resource._obj.alignment = resource._obj.min_partition = self._alignments[0]

    def _cuDevSmResourceSplitByCount(self, groups: Any, count: Any, whole: Any, *rest: Any) -> None:
        remainder, flags, least = rest
        assert (whole._obj.sm_count, flags.value, least.value) == (SMS, 0, 8)
        if groups is None:
            count._obj.value = self._num_groups
            return
        assert len(groups) == count._obj.value == self._num_groups
        self._num_splits += 1
        shift = 5 * (self._num_splits - 1)
        dealt = [(number + shift) % SMS for number in range(SMS)]
        for number, group in enumerate(groups):
            self._give(group, dealt[8 * number : 8 * number + 8], self._alignments[0])
        self._give(remainder._obj, dealt[8 * self._num_groups :], self._alignments[1])

    def _give(self, resource: Any, ids: Sequence[int], alignment: int) -> None:
        resource.type, resource.sm_count, resource.alignment = 1, len(ids), alignment
        self._given.append(_Given(self._num_splits, frozenset(ids)))
        resource.padding[:4] = list(len(self._given).to_bytes(4, "little"))

    def _cuDevResourceGenerateDesc(self, descriptor: Any, resources: Any, count: Any) -> int:
        assert len(resources) == count.value > 0
        keys = [int.from_bytes(bytes(each.padding[:4]), "little") for each in resources]
        assert len(set(keys)) == len(keys) and min(keys) > 0
        given = [self._given[key - 1] for key in keys]
        if len({each.split for each in given}) > 1 or len({r.alignment for r in resources}) > 1:
            return INVALID_CONFIGURATION
        self._pending = frozenset().union(*(each.ids for each in given))
        return 0

    def _cuGreenCtxStreamCreate(self, stream: Any, *_: Any) -> None:
        stream._obj.value = 100 + len(self.sms)
        self.sms[stream._obj.value] = self._pending

    def _cuMemGetAddressRange_v2(self, base: Any, num_bytes: Any, address: Any) -> None:
        base._obj.value, num_bytes._obj.value = address.value // 4096 * 4096, 4096

    def _cuIpcGetMemHandle(self, handle: Any, base: Any) -> None:
        handle._obj.reserved[:8] = list(base.value.to_bytes(8, "little"))

    def _cuIpcOpenMemHandle_v2(self, address: Any, handle: Any, flags: Any) -> None:
        assert flags.value == 1
        address._obj.value = int.from_bytes(bytes(handle.reserved[:8]), "little") + 2**40

    def _cuGetErrorName(self, code: ctypes.c_int, name: Any) -> None:
        name._obj.value = self._error


class FakeDaemons:
    """A `DaemonControl` whose daemons exist in its notes alone."""

    def __init__(self, *, installed: bool = True, code: int = 0, words: str = "") -> None:
        self.calls: list[tuple[str, dict[str, str]]] = []
        self.answer = "100.0"
        self._installed, self._code, self._words = installed, code, words

    def is_installed(self) -> bool:
        return self._installed

    def start(self, environment: Mapping[str, str], said: Path) -> int:
        self.calls.append(("start", dict(environment)))
        said.write_text(self._words)
        return self._code

    def ask(self, environment: Mapping[str, str], command: str) -> str:
        self.calls.append((command, dict(environment)))
        return self.answer

    @property
    def asked(self) -> list[str]:
        return [command for command, _ in self.calls]
