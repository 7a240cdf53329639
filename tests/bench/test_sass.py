"""Loops are found in machine code, with what they do in a turn."""

import pytest

from bench.kernels.sass import instructions_of, working_loops


def code(*lines: str) -> str:
    """As cuobjdump prints it: each instruction with its encoding, which takes a line more."""
    shown = []
    for number, line in enumerate(lines):
        shown.append(f"        /*{16 * number:04x}*/                   {line} ;      /* 0x0000 */")
        shown.append("                                                   /* 0x000fe200 */")
    return "\n".join(shown)


def test_a_loop_of_copies_and_products() -> None:
    found = working_loops(
        instructions_of(
            code(
                "LDGSTS.E.BYPASS.128 [R1], desc[UR8][R30.64], P1",
                "LDGDEPBAR",
                "DEPBAR.LE SB0, 0x2",  # 0x20
                "HMMA.16816.F32.BF16 R56, R40.reuse, R52, RZ",
                "NOP",
                "@P1 LDG.E R80, desc[UR8][R40.64]",  # an id, not a key
                "LDGSTS.E.BYPASS.128 [R105], desc[UR8][R102.64], P6",
                "LDGSTS.E.BYPASS.128 [R105+0x800], desc[UR8][R94.64], P6",
                "LDGDEPBAR",
                "@!P0 BRA 0x20",
                "EXIT",
                "BRA 0xb0",
            )
        )
    )
    (loop,) = found
    assert (loop.instructions, loop.matrix, loop.thread_bytes) == (7, 1, 32)
    assert (loop.groups, loop.pending, loop.turns_in_flight) == (1, 2, 3.0)


def test_a_wait_at_the_end_of_the_kernel_belongs_to_its_loop() -> None:
    (loop,) = working_loops(
        instructions_of(
            code(
                "MOV R1, c[0x0][0x28]",
                "LDG.E.64 R2, desc[UR4][R8.64]",  # 0x10
                "SYNCS.PHASECHK.TRANS64.TRYWAIT P6, [UR16], R6",
                "@!P6 BRA 0x70",
                "UTCHMMA gdesc[UR10], gdesc[UR12], tmem[UR28], tmem[UR32], idesc[UR33], !UPT",
                "BRA.U !UP0, 0x10",
                "EXIT",
                "SYNCS.PHASECHK.TRANS64.TRYWAIT P6, [UR16], R6",  # 0x70
                "@!P6 BRA 0x70",
                "BRA 0x40",
            )
        )
    )
    assert (loop.instructions, loop.matrix, loop.thread_bytes) == (8, 1, 8)
    assert loop.turns_in_flight == 0


def test_jumps_that_are_written_as_calls() -> None:
    (loop,) = working_loops(
        instructions_of(
            code(
                "MOV R1, c[0x0][0x28]",
                "LDG.E.128 R2, [R8.64]",  # 0x10
                "@P1 CALL.REL.NOINC 0x50",
                "BRA 0x10",
                "NOP",
                "EXIT",
            )
        )
    )
    assert (loop.instructions, loop.thread_bytes) == (3, 16)


def test_only_inner_loops_that_read_count_in_order_of_their_places() -> None:
    found = working_loops(
        instructions_of(
            code(
                "IADD3 R1, R1, 0x1, RZ",
                "@P0 BRA 0x0",  # reads nothing
                "MOV R2, RZ",  # 0x20
                "LDG.E.128 R4, [R8.64]",  # 0x30
                "@P1 BRA 0x30",
                "LDG.E.64 R4, [R8.64]",  # 0x50
                "FADD R1, R1, R2",
                "@P2 BRA 0x50",
                "@P3 BRA 0x20",  # around both
                "EXIT",
            )
        )
    )
    assert [(each.instructions, each.thread_bytes) for each in found] == [(2, 16), (3, 8)]


def test_loops_that_look_something_up_do_not_count_beside_copies() -> None:
    (loop,) = working_loops(
        instructions_of(
            code(
                "LDG.E.64 R4, [R8.64]",
                "@P1 BRA 0x0",
                "LDGSTS.E.BYPASS.128 [R1], desc[UR8][R30.64], P1",  # 0x20
                "LDGDEPBAR",
                "@P2 BRA 0x20",
                "EXIT",
            )
        )
    )
    assert (loop.instructions, loop.thread_bytes, loop.groups) == (3, 16, 1)


def test_no_code_is_an_error() -> None:
    assert working_loops(instructions_of(code("EXIT"))) == ()
    with pytest.raises(ValueError, match="no instruction"):
        instructions_of("Fatbin elf code:\n================\n")
