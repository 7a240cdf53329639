"""Adapters that come while their base runs: memory for some of them in a process that runs jobs."""

import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from muxcluster.core.errors import LoadError
from muxcluster.core.inputs.adapters.files import AdapterFiles, read_adapter
from muxcluster.core.inputs.adapters.load import version_in
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.adapters.low_rank import Cut, LowRank, read_pairs, version_of
from muxcluster.engine.quantised.linear import QuantisedLinear

Foreign = Any  # a module of transformers, with attributes that mypy does not know

# Linears of a layer: of its attention and its MLP, or its own (OPT). Not of experts, whose tokens
# are no job's, and not of other kinds of layers
_PLACED = re.compile(r"(?:\w+\.)+layers\.\d+\.(?:self_attn\.|mlp\.)?(?:[a-z_]+_proj|fc1|fc2)")


def placed_linears(model: nn.Module) -> Iterator[tuple[str, int, int]]:
    """Yield name, inputs and outputs of each linear that adapters may change while the model runs.

    model: undivided; it may have no data.
    """
    for name, each in model.named_modules():
        if isinstance(each, nn.Linear | QuantisedLinear) and _PLACED.fullmatch(name):
            linear: Foreign = each
            yield name, linear.in_features, linear.out_features


@dataclass(frozen=True, slots=True, eq=False)
class _Hold:
    """Where the places of one linear lie."""

    weights: LowRank
    first: int  # row of the first place


class PlacedAdapters:
    """The places of one model in this process, each with rows for an adapter in every linear.

    Whoever sends jobs says which adapter has which place; its files are read with the first row
    that needs it. No job that runs has a row with the adapter that was there before.
    """

    def __init__(
        self, spec: ModelSpec, first: int, dtype: torch.dtype, cuts: Mapping[str, Cut]
    ) -> None:
        """first: the first place's number among the model's adapters. cuts: as `read_adapters`."""
        self._base = spec.name
        self._most_ranks = spec.adapter_rank
        self._first = first
        self._dtype = dtype
        self._cuts = cuts
        self._holds: dict[str, _Hold] = {}
        self._held = [""] * spec.adapter_places  # unit ids
        self._lock = threading.Lock()

    def hold(self, module: str, weights: LowRank) -> None:
        """Take the linear's weights, as the forward uses them, with room for all places."""
        first = int(weights.starts[self._first])
        self._holds[module] = _Hold(weights, first)

    @torch.inference_mode()
    def put(self, place: int, adapter: str, path: str) -> int:
        """Let `place` have an adapter; return its number among the model's adapters.

        adapter: its unit id. path: its directory, which is read unless the place has it already.
        Raises LoadError, also for files that are not of its version any more; nobody has the place
        then.
        """
        number = self._first + 2 * place
        with self._lock:
            if self._held[place] != adapter:
                self._held[place] = ""
                files = read_adapter(Path(path))
                check_ranks(files, self._most_ranks, self._base)
                pairs = read_pairs(files, self._dtype, self._cuts)
                # caches of its version would be filled with what others of it do not compute
                if version_of(files) != version_in(adapter):
                    raise LoadError(files.weights, "has changed since it was loaded: load it again")
                self._write(place, number, pairs, files)
                self._held[place] = adapter
        return number

    def _write(
        self,
        place: int,
        number: int,
        pairs: Mapping[str, tuple[Tensor, Tensor]],
        files: AdapterFiles,
    ) -> None:
        for module, (down, up) in pairs.items():
            hold = self._holds.get(module)
            if hold is None:
                raise LoadError(files.weights, f"{self._base} has no place for {module}")
            weights = hold.weights
            mine, its = (down.shape[1], up.shape[1]), weights.sizes
            if mine != its:
                message = f"{module} is from {mine[0]} to {mine[1]}, that of {self._base} from"
                raise LoadError(files.weights, f"{message} {its[0]} to {its[1]}")
        for module, hold in self._holds.items():
            weights, first = hold.weights, hold.first + place * self._most_ranks
            end = first
            if module in pairs:
                down, up = pairs[module]
                end += len(down)
                weights.down[first:end] = down
                weights.up[first:end] = up if weights.order is None else up[:, weights.order.cpu()]
            # copied, which is waited for: a fill with a number might come after the next job's read
            weights.starts[number + 1 : number + 2].copy_(torch.tensor([end], dtype=torch.int32))


def check_ranks(files: AdapterFiles, most: int, base: str) -> None:
    """Raise LoadError for an adapter of a higher rank than `most`, naming the tensor."""
    for each in files.modules:
        if each.rank > most:
            message = (
                f"tensor {each.down} has rank {each.rank}, places of {base} have {most} "
                "(models[].adapter_places.rank)"
            )
            raise LoadError(files.weights, message)


def with_places(
    weights: LowRank | None, spec: ModelSpec, sizes: tuple[int, int], like: Tensor
) -> LowRank:
    """Return a linear's weights with rows for all places of `spec` behind those of its adapters.

    weights: of `spec.adapters`, if any changes this linear. sizes: inputs and outputs on this rank.
    like: of the device and the dtype that the weights have.

    A place is two entries of `starts`: the adapter's rows, and the rest of the place's, which no
    token has.
    """
    num_places, most = spec.adapter_places, spec.adapter_rank
    num_inputs, num_outputs = sizes
    rows = num_places * most
    down, up = like.new_zeros(rows, num_inputs), like.new_zeros(rows, num_outputs)
    starts = torch.zeros(len(spec.adapters) + 1, dtype=torch.int32)
    most_ranks = most
    if weights is not None:
        down, up = torch.cat((weights.down, down)), torch.cat((weights.up, up))
        starts = weights.starts.cpu()
        most_ranks = max(most, weights.most_ranks)
    first = int(starts[-1])
    places = first + most * torch.arange(num_places, dtype=torch.int32)
    end = torch.tensor([first + rows], dtype=torch.int32)
    starts = torch.cat((starts[:-1], places.repeat_interleave(2), end))
    return LowRank(down, up, starts.to(like.device), most_ranks)
