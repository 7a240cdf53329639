"""A CUDA driver and a control program that record what they are asked."""

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SMS = 132


class FakeCuda:
    """A card of 132 multiprocessors, granted in groups of 8, and its memory.

    calls: names in order. refuses: the call that fails, with the error's name. Streams are numbered
    as they are made; `sms` tells which multiprocessors a stream's work runs on.
    """

    def __init__(self, refuses: str = "", error: str = "CUDA_ERROR_INVALID_VALUE") -> None:
        self.calls: list[str] = []
        self.sms: dict[int, frozenset[int]] = {}
        self._refuses = refuses
        self._error = error.encode()
        self._halves: dict[int, frozenset[int]] = {}
        self._pending = frozenset[int]()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == self._refuses:
                return 1
            getattr(self, f"_{name}", lambda *_: None)(*arguments)
            return 0

        return call

    @staticmethod
    def _cuDeviceGetDevResource(device: Any, resource: Any, kind: ctypes.c_int) -> None:
        assert kind.value == 1
        resource._obj.sm_count = SMS

    def _cuDevSmResourceSplitByCount(self, first: Any, groups: Any, whole: Any, *rest: Any) -> None:
        remainder, flags, count = rest
        assert (groups._obj.value, flags.value) == (1, 0)
        granted = -(-count.value // 8) * 8
        first._obj.sm_count, remainder._obj.sm_count = granted, SMS - granted
        self._halves = {
            granted: frozenset(range(granted)),
            SMS - granted: frozenset(range(granted, SMS)),
        }

    def _cuDevResourceGenerateDesc(self, descriptor: Any, resource: Any, count: Any) -> None:
        assert count.value == 1
        self._pending = self._halves[resource._obj.sm_count]

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
