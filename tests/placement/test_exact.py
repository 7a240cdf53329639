"""The set partition finds what trying every layout finds; it never loses to its start."""

import itertools
import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.placement.estimator import Estimator
from muxcluster.placement.exact import solve_exact, upper_bound
from muxcluster.placement.exact.pieces import Split, splits_of
from muxcluster.placement.hardware import GPUS, Gpu
from muxcluster.placement.memory import DoesNotFit
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.search.gpus import kinds_of
from muxcluster.placement.search.layout import PlacedUnit, UnitBuilder, merit
from muxcluster.placement.search.start import search
from muxcluster.placement.shapes.known import SHAPES
from tests.amounts import examples

Mesh = tuple[Gpu, int]


def demand(name: str, shape: str, rate: float, **changes: object) -> Demand:
    fields = {"prompt_tokens": 161, "output_tokens": 338, "max_model_len": 2048, "max_seqs": 256}
    return Demand(name=name, shape=SHAPES[shape], rate=rate, **{**fields, **changes})


def builder(demands: Iterable[Demand], *nodes: tuple[int, str], **fields: object) -> UnitBuilder:
    made = (Node(f"n{number}", size, GPUS[gpu]) for number, (size, gpu) in enumerate(nodes))
    problem = Problem(tuple(demands), tuple(made), **fields)
    return UnitBuilder(Estimator(problem), kinds_of(problem.nodes))


def value(units: Iterable[PlacedUnit]) -> float:
    return sum(unit.estimate.value for unit in units)


def node_meshes(node: Node) -> list[list[Mesh]]:
    """All ways to cut a node into meshes of a power of two GPUs, none idle."""
    found = []
    for sizes in itertools.product(*(range(node.num_gpus // tp + 1) for tp in (1, 2, 4))):
        if sum(count * tp for count, tp in zip(sizes, (1, 2, 4), strict=True)) == node.num_gpus:
            pairs = zip(sizes, (1, 2, 4), strict=True)
            found.append([(node.gpu, tp) for count, tp in pairs for _ in range(count)])
    return found


def brute_force(shop: UnitBuilder, splits: Sequence[Split]) -> float | None:
    """Best merit over every cut of the nodes, split of a model and place of each replica."""
    nodes = shop.estimator.problem.nodes
    number = len(shop.estimator.problem.demands)
    by_model = [[each for each in splits if each.index == index] for index in range(number)]
    best: float | None = None
    for cut in itertools.product(*map(node_meshes, nodes)):
        meshes = [mesh for part in cut for mesh in part]
        choices = [
            [seats for split in wanted for seats in seatings(split, len(meshes))]
            for wanted in by_model
        ]
        for layout in itertools.product(*choices):
            found = layout_merit(shop, meshes, layout)
            if found is not None and (best is None or found > best):
                best = found
    return best


def seatings(split: Split, num_meshes: int) -> list[list[tuple[int, int, float]]]:
    """(mesh, model, rate) of each replica, in every way; no two on one mesh."""
    rates = [rate for rate, count in split.replicas.items() for _ in range(count)]
    places = (
        itertools.combinations(range(num_meshes), len(rates))
        if len(set(rates)) == 1
        else itertools.permutations(range(num_meshes), len(rates))
    )
    return [
        [(place, split.index, rate) for place, rate in zip(each, rates, strict=True)]
        for each in places
    ]


def layout_merit(
    shop: UnitBuilder, meshes: Sequence[Mesh], layout: Iterable[Iterable[tuple[int, int, float]]]
) -> float | None:
    offers: list[list[tuple[int, float]]] = [[] for _ in meshes]
    for seats in layout:
        for place, index, rate in seats:
            offers[place].append((index, rate))
    units = [
        shop.unit(gpu, tp, each) for (gpu, tp), each in zip(meshes, offers, strict=True) if each
    ]
    return None if None in units else merit(unit for unit in units if unit is not None)


_RATE = st.floats(-0.5, 2.0).map(lambda exponent: 10**exponent)
_MODEL = st.tuples(st.sampled_from(["llama-7b", "llama-13b", "llama-30b"]), _RATE)
_NODES = st.sampled_from(
    [
        ((1, "A100-80GB"),),
        ((2, "A100-80GB"),),
        ((3, "A100-80GB"),),
        ((4, "A100-80GB"),),
        ((1, "H100"), (2, "L40S")),
        ((2, "A100-80GB"), (1, "A100-80GB")),
    ]
)


@settings(max_examples=25)
@given(models=st.lists(_MODEL, min_size=1, max_size=3), nodes=_NODES)
def test_equals_brute_force(models: list[tuple[str, float]], nodes: tuple) -> None:
    demands = [demand(f"m{number}", *model) for number, model in enumerate(models)]
    shop = builder(demands, *nodes)
    best = brute_force(shop, splits_of(shop, []))
    if best is None:
        with pytest.raises(DoesNotFit):
            solve_exact(shop, [], 20.0)
        return
    units, bound = solve_exact(shop, [], 20.0)
    assert merit(units) == pytest.approx(best, rel=1e-6)
    assert value(units) <= bound
    assert best <= bound + 1e-9


def test_equals_brute_force_with_four_models() -> None:
    models = (("llama-7b", 60.0), ("llama-13b", 12.0), ("llama-7b", 3.0), ("llama-30b", 2.0))
    demands = [demand(f"m{number}", *model) for number, model in enumerate(models)]
    shop = builder(demands, (4, "A100-80GB"), objective="weighted")
    splits = [split for split in splits_of(shop, []) if sum(split.replicas.values()) <= 2]
    units, bound = solve_exact(shop, [], 20.0)
    best = brute_force(shop, splits)
    assert best is not None
    assert best <= merit(units) + 1e-9
    assert value(units) <= bound


@settings(max_examples=examples(3, 8))
@given(seed=st.integers(0, 2**32))
def test_never_worse_than_its_start_and_every_rate_is_offered(seed: int) -> None:
    draw = random.Random(seed)
    names = ["llama-7b", "llama-13b", "llama-30b"]
    demands = [
        demand(f"m{number}", draw.choice(names), 10 ** draw.uniform(0, 2)) for number in range(5)
    ]
    shop = builder(demands, (4, "A100-80GB"), (2, "H100"))
    start = search(shop)
    units, bound = solve_exact(shop, start, 1.0)
    assert merit(units) >= merit(start) - 1e-9
    assert value(units) <= bound
    for index, each in enumerate(demands):
        offered = sum(rate for unit in units for i, rate in unit.offers if i == index)
        assert offered == pytest.approx(each.rate)
    for gpu, kind in shop.kinds.items():
        sizes = [unit.tp for unit in units if unit.gpu == gpu]
        assert kind.holds({tp: sizes.count(tp) for tp in sizes})


def test_the_order_of_models_and_nodes_does_not_matter() -> None:
    models = (("llama-7b", 70.0), ("llama-13b", 25.0), ("llama-30b", 4.0))
    nodes = ((2, "A100-80GB"), (1, "H100"))
    found = []
    for order in ((0, 1, 2), (2, 0, 1)):
        demands = [demand(f"m{number}", *models[number]) for number in order]
        for turned in (nodes, nodes[::-1]):
            shop = builder(demands, *turned)
            units, bound = solve_exact(shop, [], 20.0)
            found.append((value(units), bound))
    for each in found:
        assert each == pytest.approx(found[0], rel=1e-4)


def test_a_start_with_uneven_replicas_is_kept_when_it_is_best() -> None:
    """Two GPUs, one model, 70 : 30 to begin with: nothing worse than that or than halves."""
    shop = builder([demand("m", "llama-7b", 80.0)], (2, "A100-80GB"))
    gpu = GPUS["A100-80GB"]
    start = [shop.unit(gpu, 1, [(0, rate)]) for rate in (56.0, 24.0)]
    units, _ = solve_exact(shop, [unit for unit in start if unit], 10.0)
    assert merit(units) >= merit(unit for unit in start if unit)
    assert value(units) >= value(shop.unit(gpu, 1, [(0, 40.0)]) for _ in range(2)) - 1e-9


def test_a_model_too_large_is_named_with_what_is_missing() -> None:
    shop = builder(
        [demand("small", "llama-7b", 1.0), demand("huge", "llama-65b", 1.0)], (1, "L40S")
    )
    with pytest.raises(DoesNotFit) as refusal:
        solve_exact(shop, [], 5.0)
    assert refusal.value.model == "huge"
    assert refusal.value.missing_bytes is not None and refusal.value.missing_bytes > 50 * 2**30


def test_models_too_many_name_the_largest_and_what_all_lack() -> None:
    names = ["llama-7b", "llama-7b", "llama-13b", "llama-13b"]
    demands = [demand(f"m{number}", name, 1.0) for number, name in enumerate(names)]
    shop = builder(demands, (1, "A100-40GB"))
    with pytest.raises(DoesNotFit) as refusal:
        solve_exact(shop, [], 5.0)
    assert refusal.value.model in {"m2", "m3"}
    weights = sum(each.shape.num_params * 2 for each in demands)
    assert refusal.value.missing_bytes is not None
    assert refusal.value.missing_bytes >= weights - 40 * 2**30


def test_fewest_gpus_has_no_bound_of_its_own() -> None:
    shop = builder([demand("m", "llama-7b", 1.0)], (1, "H100"), objective="fewest-gpus")
    assert upper_bound(shop, 1.0) is None
