"""Adapters of a loaded model: fused, unfused and mapped from another process; and bad ones."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from muxcluster.core.errors import LoadError
from muxcluster.core.unitspec import AdapterSpec, ModelSpec, UnitSpec
from muxcluster.engine.adapters.forward import AdaptedForward
from muxcluster.engine.adapters.low_rank import LowRank
from muxcluster.engine.adapters.tokens import NO_ADAPTER, AdapterTokens
from muxcluster.engine.adapters.weights import ModelAdapters
from muxcluster.engine.decoders.adapted import check_calls, linear_sizes, with_adapters
from muxcluster.engine.decoders.torch_decoder import FusedDecoder
from muxcluster.engine.forward.paged_forward import Forward
from muxcluster.engine.gpu.memory.shared import OwnedMemory, mapped_memory
from muxcluster.engine.load.paged_loading import load_model
from muxcluster.engine.load.parity import WholeAttention
from muxcluster.engine.quantised.linear import QuantisedLinear
from muxcluster.engine.steps.runner import Earlier, load_forward
from tests.adapters import LLAMA, merged, write_adapter
from tests.engine.conftest import ModelBuilder
from tests.engine.units import spec_of
from tests.models import model_spec

CPU = torch.device("cpu")
TOKENS = torch.tensor([3, 1, 4, 1, 5, 9, 2])


@dataclass(frozen=True)
class Case:
    """A model with an adapter, and the logits of TOKENS that each should give."""

    unit: UnitSpec
    plain: Tensor
    adapted: Tensor

    @property
    def spec(self) -> ModelSpec:
        return self.unit.models[0]


@pytest.fixture(scope="module", params=["llama", "qwen3", "mixtral"])
def case(
    request: pytest.FixtureRequest, tiny: ModelBuilder, tmp_path_factory: pytest.TempPathFactory
) -> Case:
    base, root = tiny(request.param), tmp_path_factory.mktemp("adapters")
    targets = LLAMA if request.param != "mixtral" else ("q_proj", "o_proj")
    adapter = write_adapter(root / "one", base, rank=3, targets=targets)
    whole = merged(root / "merged", base, adapter)
    unit = spec_of([base])
    models = (replace(unit.models[0], adapters=(AdapterSpec("one", str(adapter)),)),)
    return Case(replace(unit, models=models), logits_of(base), logits_of(whole))


@torch.inference_mode()
def logits_of(directory: Path) -> Tensor:
    forward = Forward(load_model(model_spec(directory, "oracle"), "cpu"))
    return forward.logits(TOKENS, torch.arange(len(TOKENS)), WholeAttention(), None)


@torch.inference_mode()
def check(forward: object, case: Case) -> None:
    """With and without the adapter; and in one batch, where attention sees both kinds."""
    assert isinstance(forward, AdaptedForward)
    positions = torch.arange(len(TOKENS))

    def asked(adapters: list[int]) -> Tensor:
        tokens = AdapterTokens.of(np.array(adapters, dtype=np.int32), CPU)
        return forward.of(tokens).logits(TOKENS, positions, WholeAttention(), None)

    close = {"rtol": 1e-4, "atol": 1e-3}
    torch.testing.assert_close(asked([0] * len(TOKENS)), case.adapted, **close)
    torch.testing.assert_close(asked([NO_ADAPTER] * len(TOKENS)), case.plain, **close)
    # causal: the tokens before the first adapted one are the base's
    half = asked([NO_ADAPTER] * 4 + [0] * 3)
    torch.testing.assert_close(half[:4], case.plain[:4], **close)
    assert not torch.allclose(half[4:], case.plain[4:], atol=0.1)


def test_on_this_machines_decoder(case: Case) -> None:
    check(load_forward(case.spec, case.unit), case)


def test_loaded_again_without_checks(case: Case) -> None:
    """As a model that wakes."""
    first = load_forward(case.spec, case.unit)
    assert isinstance(first, AdaptedForward)
    plain = first.plain
    calls = [each.call for each in plain.layers] if isinstance(plain, FusedDecoder) else None
    check(load_forward(case.spec, case.unit, earlier=Earlier(calls)), case)


def test_on_transformers_own_modules(case: Case) -> None:
    check(load_forward(case.spec, replace(case.unit, fuses_layers=False)), case)


def test_mapped_by_a_worker_from_its_owners_memory(case: Case) -> None:
    owned = OwnedMemory(case.unit)
    forward = mapped_memory(case.unit, owned.manifest).forwards[case.spec.name]
    check(forward, case)


Edit = Callable[[dict[str, Tensor]], None]
Q = "base_model.model.model.layers.1.self_attn.q_proj"


def renamed(tensors: dict[str, Tensor], old: str, new: str) -> None:
    for side in "AB":
        tensors[f"{new}.lora_{side}.weight"] = tensors.pop(f"{old}.lora_{side}.weight")


def narrower(tensors: dict[str, Tensor], side: str) -> None:
    name = f"{Q}.lora_{side}.weight"
    tensors[name] = (tensors[name][:, :-8] if side == "A" else tensors[name][:-8]).contiguous()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: renamed(t, Q, Q.replace("layers.1", "layers.7")), "has no linear model.layers"),
        (lambda t: renamed(t, Q, Q.replace(".q_proj", "")), "is no linear, but a LlamaAttention"),
        (lambda t: renamed(t, Q, "base_model.model.lm_head"), "the output layer cannot be adapted"),
        (lambda t: narrower(t, "A"), "q_proj.lora_A.weight is for 184 inputs"),
        (lambda t: narrower(t, "B"), "q_proj.lora_B.weight is for 376 outputs"),
        (lambda t: t[f"{Q}.lora_B.weight"].fill_(float("nan")), "holds NaN or infinite numbers"),
    ],
)
def test_what_does_not_fit_the_base_is_refused_by_name(
    tiny: ModelBuilder, tmp_path: Path, edit: Edit, message: str
) -> None:
    base = tiny("llama")
    adapter = write_adapter(tmp_path / "one", base, targets=("q_proj",))
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file)
    unit = spec_of([base])
    spec = replace(unit.models[0], adapters=(AdapterSpec("one", str(adapter)),))
    with pytest.raises(LoadError, match=message) as error:
        load_forward(spec, unit)
    assert error.value.path == file


def test_what_makes_keys_of_latents_cannot_be_adapted(tiny: ModelBuilder, tmp_path: Path) -> None:
    base = tiny("deepseek_v2")
    adapter = write_adapter(tmp_path / "one", base, targets=("kv_b_proj",))
    unit = spec_of([base])
    spec = replace(unit.models[0], adapters=(AdapterSpec("one", str(adapter)),))
    with pytest.raises(LoadError, match=r"kv_b_proj of \S+ makes keys and values of latents"):
        load_forward(spec, unit)


def test_a_model_on_the_dense_backend_has_none(tiny: ModelBuilder, tmp_path: Path) -> None:
    base = tiny("llama")
    adapter = write_adapter(tmp_path / "one", base)
    unit = spec_of([base])
    adapters = (AdapterSpec("one", str(adapter)),)
    spec = replace(unit.models[0], adapters=adapters, backend="dense")
    with pytest.raises(LoadError, match="need the paged backend"):
        load_forward(spec, unit)


def test_scales_by_pattern_and_root(tiny: ModelBuilder, tmp_path: Path) -> None:
    """alpha_pattern and rank_pattern as PEFT reads them: the end of a module's name."""
    base = tiny("llama")
    adapter = write_adapter(
        tmp_path / "one",
        base,
        rank=4,
        targets=("q_proj", "o_proj"),
        r=9,
        rank_pattern={"q_proj": 4, r"layers\.\d+\.self_attn\.o_proj": 4},
        alpha_pattern={"layers.0.self_attn.q_proj": 40},
        use_rslora=True,
        lora_alpha=6,
    )
    unit = spec_of([base])
    spec = replace(unit.models[0], adapters=(AdapterSpec("one", str(adapter)),))
    forward = load_forward(spec, replace(unit, fuses_layers=False))
    assert isinstance(forward, AdaptedForward)
    tensors = load_file(adapter / "adapter_model.safetensors")
    for layer, name, scale in ((0, "q_proj", 20.0), (1, "q_proj", 3.0), (0, "o_proj", 3.0)):
        module = f"model.layers.{layer}.self_attn.{name}"
        linear = forward.plain.model.get_submodule(module)  # type: ignore[attr-defined]
        (update,) = linear.updates
        stored = tensors[f"base_model.model.{module}.lora_B.weight"]
        torch.testing.assert_close(update.weights.up, scale * stored.T)


class _Reading(nn.Module):
    """A module that computes with a linear's weight and does not call it."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.linear(inputs, self.linear.weight)


class _Halves(nn.Module):
    """A module that calls a linear for half of the tokens at a time, as experts do."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, inputs: Tensor) -> Tensor:
        half = inputs.shape[1] // 2
        return torch.cat([self.linear(inputs[:, :half]), self.linear(inputs[:, half:])], dim=1)


@pytest.mark.parametrize(
    ("wrapped", "message"),
    [
        (_Reading, "does not call model.layers.0.self_attn.q_proj.linear"),
        (_Halves, "computes experts by tokens: 4 tokens of 9"),
    ],
)
def test_a_linear_that_is_not_called_for_all_tokens_cannot_be_adapted(
    tiny: ModelBuilder, wrapped: Callable[[nn.Module], nn.Module], message: str
) -> None:
    spec = model_spec(tiny("llama"), "m", adapters=(AdapterSpec("one", "/adapters/one"),))
    model = load_model(spec, "cpu")
    name = "model.layers.0.self_attn.q_proj"
    model.set_submodule(name, wrapped(model.get_submodule(name)))
    inner = f"{name}.linear"
    sizes = linear_sizes(model)
    ranks = LowRank(
        torch.zeros(1, 192), torch.zeros(1, sizes[inner]), torch.tensor([0, 1]).int(), 1
    )
    forward = with_adapters(Forward(model), ModelAdapters(("one",), {inner: ranks}), sizes)
    with pytest.raises(LoadError, match=message):
        check_calls(forward, spec)


@torch.inference_mode()
@pytest.mark.parametrize("fuses", [True, False])
def test_a_quantised_base(tiny: ModelBuilder, tmp_path: Path, fuses: bool) -> None:
    """As ordinary linears of the dequantised weights with the adapter's product in them."""
    base = tiny("llama")
    adapter = write_adapter(tmp_path / "one", base, rank=3)
    unit = replace(spec_of([base]), fuses_layers=fuses)
    spec = replace(unit.models[0], quantize="int4")
    model = load_model(spec, "cpu")
    tensors = load_file(adapter / "adapter_model.safetensors")
    for name, up in tensors.items():
        if name.endswith(".lora_B.weight"):
            module = name.removeprefix("base_model.model.").removesuffix(".lora_B.weight")
            down = tensors[name.replace(".lora_B.", ".lora_A.")]
            stored = model.get_submodule(module)
            assert isinstance(stored, QuantisedLinear)
            linear = nn.Linear(*down.shape[1:], len(up), bias=False)
            linear.weight = nn.Parameter(stored.weight + 2.0 * (up @ down), requires_grad=False)
            model.set_submodule(module, linear)
    positions = torch.arange(len(TOKENS))
    expected = Forward(model).logits(TOKENS, positions, WholeAttention(), None)
    forward = load_forward(replace(spec, adapters=(AdapterSpec("one", str(adapter)),)), unit)
    assert isinstance(forward, AdaptedForward)
    tokens = AdapterTokens.of(np.zeros(len(TOKENS), dtype=np.int32), CPU)
    found = forward.of(tokens).logits(TOKENS, positions, WholeAttention(), None)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-3)
