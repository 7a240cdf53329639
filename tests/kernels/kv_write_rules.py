"""What every kv_write must do: put tokens where the layout says, and touch nothing else."""

from collections.abc import Callable

import pytest
import torch

from tests.kernels.paged_cases import PagedCase, empty_case


class KvWriteRules:
    """`kv_write` is the function under test."""

    kv_write: Callable[..., None]

    def write(self, case: PagedCase, key, value, table_rows, positions) -> None:
        self.kv_write(
            case.pool,
            key,
            value,
            case.table,
            torch.tensor(table_rows, dtype=torch.int32),
            torch.tensor(positions, dtype=torch.int32),
            case.from_right,
            case.block_tokens,
        )

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    @pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
    def test_every_token_lands_in_its_place(self, head_dim, dtype):
        self.check_every_token(head_dim, dtype)

    @pytest.mark.parametrize("block", [32, 64])
    @pytest.mark.parametrize("head_dim", [64, 80, 128])
    def test_every_token_lands_in_its_place_in_larger_blocks(self, head_dim, block):
        self.check_every_token(head_dim, torch.float16, size=block)

    def check_every_token(self, head_dim, dtype, size=None):
        block = empty_case([1], 1, head_dim, dtype=dtype, block=size).block_tokens
        lengths = [1, block - 1, block, block + 1, 3 * block + 5]
        rights = [False, True, False, True, True]
        case = empty_case(lengths, 2, head_dim, dtype=dtype, rights=rights, block=size)
        pairs = [(table_row, p) for table_row, length in enumerate(lengths) for p in range(length)]
        shuffled = [pairs[i] for i in torch.randperm(len(pairs)).tolist()]
        key = torch.randn(len(pairs), 2, head_dim).to(dtype)
        value = torch.randn(len(pairs), 2, head_dim).to(dtype)
        expected = case.pool.clone()
        before = PagedCase(
            expected, case.table, case.from_right, dtype, head_dim, case.block_tokens
        )
        for token, (table_row, position) in enumerate(shuffled):
            for head in range(2):
                before.place(table_row, head, position, 0).copy_(key[token, head])
                before.place(table_row, head, position, 1).copy_(value[token, head])
        self.write(case, key, value, [s for s, _ in shuffled], [p for _, p in shuffled])
        assert torch.equal(case.pool, expected)

    def test_two_sequences_share_a_block_from_both_ends(self):
        case = empty_case([20, 12], 1, 64, rights=[False, True])
        case.table[1, 0, 0] = case.table[0, 0, 0]
        key, value = torch.randn(2, 32, 1, 64)
        positions = [*range(20), *range(12)]
        self.write(case, key, value, [0] * 20 + [1] * 12, positions)
        for token, position in enumerate(positions):
            table_row = int(token >= 20)
            assert torch.equal(case.place(table_row, 0, position, 0), key[token, 0])
            assert torch.equal(case.place(table_row, 0, position, 1), value[token, 0])

    def test_strided_heads_are_accepted(self):
        case = empty_case([3], 2, 64)
        key, value = torch.randn(2, 2, 3, 64).transpose(1, 2)
        assert not key.is_contiguous()
        self.write(case, key, value, [0, 0, 0], [0, 1, 2])
        assert torch.equal(case.place(0, 1, 2, 0), key[2, 1])
        assert torch.equal(case.place(0, 1, 2, 1), value[2, 1])

    def test_no_tokens_write_nothing(self):
        case = empty_case([3], 2, 64)
        self.write(case, torch.empty(0, 2, 64), torch.empty(0, 2, 64), [], [])
        assert (case.pool == 0xFF).all()

    @pytest.mark.parametrize("absent", [(), (0,), (1, 4), (0, 1, 2, 3, 4)])
    def test_tokens_at_negative_positions_write_nothing(self, absent):
        """Not even where their table row is none of the table's."""
        case, same = empty_case([5], 3, 64), empty_case([5], 3, 64)
        key, value = torch.randn(2, 5, 3, 64)
        there = [i for i in range(5) if i not in absent]
        table_rows = [10**6 if i in absent else 0 for i in range(5)]
        positions = [-1 if i in absent else i for i in range(5)]
        self.write(case, key, value, table_rows, positions)
        self.write(same, key[there], value[there], [0] * len(there), there)
        assert torch.equal(case.pool, same.pool)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"pool": torch.zeros(4, 4, 4, dtype=torch.uint8)}, "pool"),
            ({"pool": torch.zeros(4, 16384)}, "pool"),
            ({"pool": torch.zeros(16384, 4, dtype=torch.uint8).t()}, "pool"),
            ({"block_tokens": 64}, "cannot hold"),
            ({"block_tokens": 0}, "cannot hold"),
            ({"key": torch.zeros(3, 128)}, "key"),
            ({"key": torch.zeros(3, 64, 2).transpose(1, 2)}, "key"),
            ({"value": torch.zeros(2, 2, 64)}, "agree"),
            ({"value": torch.zeros(3, 2, 64).half()}, "agree"),
            ({"table": torch.zeros(1, 2, 3, dtype=torch.int64)}, "table"),
            ({"table": torch.zeros(1, 4, 3, dtype=torch.int32)}, "KV heads"),
            ({"from_right": torch.zeros(2, dtype=torch.bool)}, "from_right"),
            ({"table_rows": torch.zeros(2, dtype=torch.int32)}, "table_rows"),
            ({"positions": torch.zeros(3)}, "positions"),
        ],
    )
    def test_wrong_arguments_are_named(self, change, message):
        arguments = {
            "pool": torch.zeros(4, 16384, dtype=torch.uint8),
            "key": torch.zeros(3, 2, 64),
            "value": torch.zeros(3, 2, 64),
            "table": torch.zeros(1, 2, 3, dtype=torch.int32),
            "table_rows": torch.zeros(3, dtype=torch.int32),
            "positions": torch.arange(3),
            "from_right": torch.zeros(1, dtype=torch.bool),
            "block_tokens": 32,
        }
        self.kv_write(**arguments)
        with pytest.raises(ValueError, match=message):
            self.kv_write(**(arguments | change))
