"""Loops in a kernel's machine code: instructions, bytes read, matrix products.

The input is what `cuobjdump -sass` prints of a binary of one kernel. Loops are natural loops of
the control-flow graph, so retry code that the assembler moves to the end of a kernel belongs to the
loop it returns to.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
_TARGET = re.compile(r"0x([0-9a-f]+)\s*$")
_WIDTH = re.compile(r"\.(64|128)\b")
_MATRIX = re.compile(r"^U?[HIQDO]?G?MMA\b|^UTC\w*MMA")
_LOADS = ("LDGSTS", "LDG")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction."""

    address: int
    guard: str  # the predicate that must hold, empty where there is none
    name: str
    operands: str

    @property
    def root(self) -> str:
        """The name without its modifiers."""
        return self.name.partition(".")[0]

    @property
    def target(self) -> int | None:
        """Where it may jump to, None where it goes on or its target is not a constant.

        The assembler writes some jumps as calls that return nowhere (CALL.REL.NOINC).
        """
        is_jump = self.root == "BRA" or self.name.startswith("CALL.REL.NOINC")
        found = _TARGET.search(self.operands) if is_jump else None
        return int(found[1], 16) if found else None

    @property
    def is_last(self) -> bool:
        """Whether the next instruction is never reached from here."""
        is_conditional = self.guard not in ("", "@PT", "@UPT") or re.match(
            r"!?U?P\d", self.operands
        )
        return self.root in ("BRA", "EXIT", "RET") and not is_conditional

    @property
    def is_matrix(self) -> bool:
        """Whether it is a product on the tensor cores."""
        return bool(_MATRIX.match(self.root))

    @property
    def loaded_bytes(self) -> int:
        """Bytes a thread reads from global memory with it, 0 for other instructions."""
        if self.root not in _LOADS:
            return 0
        width = _WIDTH.search(self.name)
        return int(width[1]) // 8 if width else 4


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of a kernel, by machine instructions."""

    instructions: int  # in its body, each once
    matrix: int  # those of them that are tensor-core products
    # bytes a thread reads from global memory in one turn with loads of at least 8 bytes (narrower
    # ones read block ids, not keys)
    thread_bytes: int
    groups: int  # groups of asynchronous copies it commits in one turn
    pending: int  # most groups that may be under way where it waits for one

    @property
    def turns_in_flight(self) -> float:
        """Turns whose copies are under way where the loop waits, 0 without asynchronous copies."""
        return (self.pending + self.groups) / self.groups if self.groups else 0.0


def instructions_of(code: str) -> tuple[Instruction, ...]:
    """The instructions in `code`, in order of their addresses.

    Raises ValueError where there is none: the format is not the expected one.
    """
    found = (_INSTRUCTION.match(line) for line in code.splitlines())
    parsed = tuple(
        Instruction(int(each[1], 16), each[2] or "", each[3], each[4].strip())
        for each in found
        if each
    )
    if not parsed:
        raise ValueError("no instruction in the disassembly")
    return parsed


def working_loops(instructions: Sequence[Instruction]) -> tuple[Loop, ...]:
    """The innermost loops that read global memory with wide loads, in order of their addresses.

    Where some read by asynchronous copies, only these: others look up offsets. Paged attention has
    one, chunked prefill one for each phase of its masks, prefix attention one for each size of
    tiles.
    """
    found = {each: _loop([instructions[index] for index in each]) for each in _loops(instructions)}
    # Loops that only wait for a barrier are inside others and do not make these outer ones.
    working = {body: loop for body, loop in found.items() if loop.thread_bytes}
    working = {body: loop for body, loop in working.items() if loop.groups} or working
    inner = (body for body in working if not any(other < body for other in working))
    return tuple(working[body] for body in sorted(inner, key=min))


def _loop(body: Sequence[Instruction]) -> Loop:
    wide = (each.loaded_bytes for each in body if each.loaded_bytes >= 8)
    waits = [_pending(each) for each in body if each.name == "DEPBAR.LE"]
    return Loop(
        instructions=sum(each.root != "NOP" for each in body),
        matrix=sum(each.is_matrix for each in body),
        thread_bytes=sum(wide),
        groups=sum(each.root == "LDGDEPBAR" for each in body),
        pending=max(waits, default=0),
    )


def _pending(wait: Instruction) -> int:
    """The count of `DEPBAR.LE SB0, 0x3`: so many groups of copies may be under way after it."""
    return int(wait.operands.rpartition("0x")[2].split(",")[0], 16)


def _loops(instructions: Sequence[Instruction]) -> list[frozenset[int]]:
    """The bodies of the natural loops, as indices of instructions; those with one head are one."""
    after = _successors(instructions)
    before: dict[int, list[int]] = {}
    for index, nexts in enumerate(after):
        for each in nexts:
            before.setdefault(each, []).append(index)
    bodies: dict[int, set[int]] = {}
    for source, head in _back_edges(after):
        bodies.setdefault(head, {head}).update(_reaching(source, head, before))
    return [frozenset(each) for each in bodies.values()]


def _successors(instructions: Sequence[Instruction]) -> list[list[int]]:
    """For each instruction the indices of those that may come next."""
    index_of = {each.address: index for index, each in enumerate(instructions)}
    after = []
    for index, each in enumerate(instructions):
        is_final = each.is_last or index + 1 == len(instructions)
        nexts = [] if is_final else [index + 1]
        if each.target in index_of:
            nexts.append(index_of[each.target])
        after.append(nexts)
    return after


def _back_edges(after: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Edges (source, head) to an instruction that is on the walk's own path from the first one.

    In a reducible graph, as compilers make them, these are the edges that close loops.
    """
    walk = [(0, iter(after[0]))]
    on_path, seen = {0}, {0}
    while walk:
        index, nexts = walk[-1]
        for each in nexts:
            if each in on_path:
                yield index, each
            elif each not in seen:
                seen.add(each)
                on_path.add(each)
                walk.append((each, iter(after[each])))
                break
        else:
            on_path.remove(index)
            walk.pop()


def _reaching(source: int, head: int, before: Mapping[int, Sequence[int]]) -> set[int]:
    """The instructions from which `source` is reached without passing `head`, source included."""
    found, waiting = {head}, [source]
    while waiting:
        index = waiting.pop()
        if index not in found:
            found.add(index)
            waiting.extend(before.get(index, ()))
    return found
