"""Number of thread blocks of a kernel on one multiprocessor."""

from dataclasses import dataclass

WARP = 32
_MAX_BLOCKS = 32
_MAX_WARPS = 64
_PARTITIONS = 4  # Parts of a multiprocessor, each with a scheduler and registers of its own
_PARTITION_REGISTERS = 16_384
_REGISTERS_STEP = 8  # Registers of a thread are given out in multiples of this
_TENSOR_COLUMNS = 512
_RESERVED_SHARED = 1024  # Bytes that the system takes of every block's shared memory
_SHARED_STEP = 128
# Shared memory of a multiprocessor in bytes (CUDA C++ Programming Guide, technical specifications
# by compute capability: 164, 228 and 228 KiB); the other limits are the same for all three.
_SHARED = {80: 167_936, 90: 233_472, 100: 233_472}


@dataclass(frozen=True, slots=True)
class BlockNeeds:
    """What one thread block asks for."""

    num_warps: int
    registers: int  # of a thread
    shared_bytes: int  # dynamic and static
    tensor_columns: int = 0  # of tensor memory, which capability 10.0 has


def blocks_per_multiprocessor(needs: BlockNeeds, capability: int) -> int:
    """Blocks that fit at a time, 0 where not even one does."""
    step = _REGISTERS_STEP
    warp_registers = WARP * max(step, -(-needs.registers // step) * step)
    warps = min(_MAX_WARPS, _PARTITIONS * (_PARTITION_REGISTERS // warp_registers))
    taken = -(-(needs.shared_bytes + _RESERVED_SHARED) // _SHARED_STEP) * _SHARED_STEP
    found = min(_MAX_BLOCKS, warps // needs.num_warps, _SHARED[capability] // taken)
    if needs.tensor_columns:
        found = min(found, _TENSOR_COLUMNS // needs.tensor_columns)
    return found
