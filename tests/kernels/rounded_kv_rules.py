"""What every kernel must do with keys and values in 8 bits, against float64 on the rounded ones."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.amounts import slow
from tests.kernels import paged_decode_rules, paged_prefill_rules, prefix_cases
from tests.kernels.paged_cases import PagedCase, empty_case, filled_case, some_sinks
from tests.kernels.prefix_cases import Group, decodes, grouped_case

INT8, FP8 = torch.int8, torch.float8_e4m3fn


def numbers_of(slots: Tensor, kv_dtype: torch.dtype) -> Tensor:
    """What the bytes [tokens, slot] of keys or values stand for, float64."""
    if kv_dtype == FP8:
        return slots.view(FP8).double()
    scales = slots[:, -4:].contiguous().view(torch.float32).double()
    return slots[:, :-4].view(torch.int8) * scales


class RoundedKvRules:
    """The functions under test; `decodes_in` are ways to decode with the same arguments."""

    kv_write: Callable[..., None]
    decodes_in: tuple[Callable[..., Tensor], ...]
    paged_prefill: Callable[..., Tensor]
    prefix_attention: Callable[..., Tensor]

    def written(self, numbers: Tensor, kv_dtype: torch.dtype, case: PagedCase) -> Tensor:
        """Bytes of the keys [2, tokens, slot] after they were written to two heads as keys, and
        negated as values, whose bytes must say the same."""
        tokens = numbers.shape[1]
        heads = numbers.transpose(0, 1).contiguous()
        self.kv_write(
            case.pool,
            heads,
            -heads,
            case.table,
            torch.zeros(tokens, dtype=torch.int64),
            torch.arange(tokens),
            case.from_right,
            case.block_tokens,
            kv_dtype=kv_dtype,
        )
        keys, values = (
            torch.stack(
                [
                    torch.stack([case.slot(0, head, token, half) for token in range(tokens)])
                    for head in range(2)
                ]
            )
            for half in (0, 1)
        )
        for one, other in zip(keys, values, strict=True):
            near, negated = numbers_of(one, kv_dtype), numbers_of(other, kv_dtype)
            torch.testing.assert_close(negated, -near, rtol=0, atol=0.01 * float(near.abs().max()))
        return keys

    @pytest.mark.parametrize("right", [False, True])
    @pytest.mark.parametrize(("head_dim", "dtype"), [(64, torch.float32), (80, torch.float16)])
    def test_int8_is_half_a_step_off_at_most(self, head_dim, dtype, right):
        case = empty_case([70], 2, head_dim, dtype=dtype, rights=[right], kv_dtype=INT8)
        before = case.pool.clone()
        numbers = torch.randn(2, 70, head_dim) * torch.logspace(-3, 3, 70)[None, :, None]
        numbers[1, 5] = 0
        numbers = numbers.to(dtype)
        keys = self.written(numbers, INT8, case)
        for head in range(2):
            near, exact = numbers_of(keys[head], INT8), numbers[head].double()
            step = exact.abs().amax(-1, keepdim=True) / 127
            assert ((near - exact).abs() <= step * 0.501).all()
            torch.testing.assert_close(near.abs().amax(-1), exact.abs().amax(-1))
        changed = (case.pool != before).any(1).sum()
        assert changed == 2 * -(-70 // case.block_tokens)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_fp8_is_the_nearest_number(self, dtype):
        """Of all numbers that e4m3 has, the middles between them, and random ones."""
        bits = torch.arange(127, dtype=torch.uint8)
        known = bits.view(FP8).float()
        some = torch.cat((known, (known[:-1] + known[1:]) / 2, torch.randn(131).exp()))
        numbers = torch.stack((some, -some.flip(0))).view(2, 6, 64).to(dtype)
        case = empty_case([6], 2, 64, dtype=dtype, kv_dtype=FP8)
        keys = self.written(numbers, FP8, case)
        assert torch.equal(keys, numbers.to(FP8).view(torch.uint8))

    @pytest.mark.parametrize("kv_dtype", [INT8, FP8])
    def test_what_is_not_finite_stays_so_and_what_is_too_large_is_cut(self, kv_dtype):
        numbers = torch.ones(2, 4, 64)
        numbers[0, 1, 3], numbers[1, 2, 5], numbers[0, 3, 7] = torch.nan, -torch.inf, 1e6
        case = empty_case([4], 2, 64, kv_dtype=kv_dtype)
        key = numbers.transpose(0, 1).contiguous()
        where = (torch.zeros(4, dtype=torch.int64), torch.arange(4), case.from_right)
        self.kv_write(case.pool, key, key, case.table, *where, case.block_tokens, kv_dtype=kv_dtype)

        def near(head, token):
            return numbers_of(
                case.slot(head=head, table_row=0, position=token, half=1)[None], kv_dtype
            )

        assert not near(0, 1).isfinite().all() and not near(1, 2).isfinite().all()
        assert near(0, 0).isfinite().all() and near(1, 3).isfinite().all()
        assert near(0, 3)[0, 7] == (448 if kv_dtype == FP8 else pytest.approx(1e6))

    @pytest.mark.parametrize("kv_dtype", [INT8, FP8])
    @pytest.mark.parametrize(
        ("head_dim", "dtype", "block"),
        [(64, torch.float16, None), (128, torch.float16, 64), (80, torch.float16, None)],
    )
    def test_decodes(self, head_dim, dtype, block, kv_dtype):
        options = {"dtype": dtype, "block": block, "kv_dtype": kv_dtype}
        tokens = empty_case([1], 1, head_dim, **options).block_tokens
        lengths = [1, tokens, tokens + 1, tokens - 1]
        case = filled_case(lengths, 1, head_dim, rights=[False, True, True, False], **options)
        decodes_in = [partial(way, kv_dtype=kv_dtype) for way in self.decodes_in]
        for decode in decodes_in:
            paged_decode_rules.check(decode, case, heads=2, sliding_window=33, soft_cap=2.0)
            paged_decode_rules.check(decode, case, heads=2, sinks=some_sinks(2, case))
        case.turn(1, 1)
        for decode in decodes_in:
            paged_decode_rules.check(decode, case, heads=2)

    @pytest.mark.parametrize("kv_dtype", [INT8, FP8])
    @pytest.mark.parametrize(
        ("head_dim", "dtype", "block"),
        [(64, torch.float16, None), *slow((128, torch.float16, 64))],
    )
    def test_prefills(self, head_dim, dtype, block, kv_dtype):
        options = {"dtype": dtype, "block": block, "kv_dtype": kv_dtype}
        tokens = empty_case([1], 1, head_dim, **options).block_tokens
        lengths = [tokens + 3, tokens, tokens + 3]
        case = filled_case(lengths, 1, head_dim, rights=[False, True, True], **options)
        prefill = partial(self.paged_prefill, kv_dtype=kv_dtype)
        starts = [tokens - 20, tokens // 2, tokens]
        paged_prefill_rules.check(prefill, case, heads=2, starts=starts)
        paged_prefill_rules.check(
            prefill, case, heads=2, starts=starts, sliding_window=20, soft_cap=2.0
        )
        paged_prefill_rules.check(prefill, case, heads=2, starts=starts, sinks=some_sinks(2, case))

    @pytest.mark.parametrize("kv_dtype", [INT8, FP8])
    def test_shared_prefixes(self, kv_dtype):
        options = {"dtype": torch.float16, "kv_dtype": kv_dtype}
        tokens = grouped_case([decodes(0, 1)], 1, 64, **options).case.block_tokens
        attention = partial(self.prefix_attention, kv_dtype=kv_dtype)
        groups = [decodes(2, 1, tokens + 1), decodes(0, tokens - 1)]
        grouped = grouped_case(groups, 1, 64, **options)
        prefix_cases.check(attention, grouped, heads=2)
        prefix_cases.check(attention, grouped, heads=2, sinks=some_sinks(2, grouped.case))
        chunks = [Group(1, [(20, 20), (9, 2)]), Group(0, [(30, 5)])]
        prefix_cases.check(attention, grouped_case(chunks, 1, 64, **options), heads=2)

    @pytest.mark.parametrize("kv_dtype", [INT8, FP8])
    def test_a_corrupted_byte_changes_the_output(self, kv_dtype):
        """Of an element, or of a scale."""
        case = filled_case([40], 1, 64, kv_dtype=kv_dtype)
        query = torch.randn(1, 1, 64)
        arguments = (case.table, torch.tensor([0]), torch.tensor([40]), case.from_right)
        options = {"block_tokens": case.block_tokens, "scale": 0.3, "kv_dtype": kv_dtype}
        for half, place in ((0, 3), (1, 60), *([(0, 66), (1, 66)] if kv_dtype == INT8 else [])):
            before = [way(query, case.pool, *arguments, **options) for way in self.decodes_in]
            case.slot(0, 0, 37, half)[place] ^= 0x20
            for way, former in zip(self.decodes_in, before, strict=True):
                assert not torch.equal(way(query, case.pool, *arguments, **options), former)

    def test_wrong_types_are_named(self):
        case = filled_case([4], 1, 64)
        arguments = (case.table, torch.tensor([0]), torch.tensor([4]), case.from_right)
        options = {"block_tokens": case.block_tokens, "scale": 0.3}
        decode = self.decodes_in[0]
        with pytest.raises(ValueError, match="kv_dtype must be"):
            decode(torch.randn(1, 1, 64), case.pool, *arguments, **options, kv_dtype=torch.float16)
        with pytest.raises(ValueError, match="multiples of 4"):
            decode(torch.randn(1, 1, 62), case.pool, *arguments, **options, kv_dtype=INT8)
