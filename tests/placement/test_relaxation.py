"""No layout is worth more than the bound: random problems, random layouts, the real estimator."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.placement.estimator import Estimator
from muxcluster.placement.exact.modes import BANDWIDTH, KV, LANE, PREFILL, SMS, Detail, modes_of
from muxcluster.placement.exact.relaxation import upper_bound
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.problem import Demand, Limits, Node, Problem
from muxcluster.placement.search.gpus import kinds_of
from muxcluster.placement.search.layout import PlacedUnit, UnitBuilder
from muxcluster.placement.shapes.known import SHAPES
from tests.amounts import examples

_SHAPES = ("llama-7b", "llama-13b", "llama-30b", "mistral-7b", "qwen2.5-1.5b", "mixtral-8x7b")
_LARGEST_BLOCK = 2 * 128 * 16 * 4
"""Bytes of a block of a unit with a model in fp32."""
_GPUS = ("A100-80GB", "L40S", "H100")


def builder(problem: Problem) -> UnitBuilder:
    return UnitBuilder(Estimator(problem), kinds_of(problem.nodes))


def random_problem(draw: random.Random) -> Problem:
    demands = tuple(
        Demand(
            name=f"m{number}",
            shape=SHAPES[draw.choice(_SHAPES)],
            rate=10 ** draw.uniform(-1, 2.2),
            prompt_tokens=draw.choice([32, 161, 1000]),
            output_tokens=draw.choice([16, 338, 900]),
            max_model_len=2048,
            max_seqs=draw.choice([8, 256, 1024]),
            itemsize=draw.choice([2, 2, 4]),
            weight=draw.choice([0.5, 1.0, 3.0]),
            ttft_s=draw.choice([None, 1.0]),
            tpot_s=draw.choice([None, 0.1]),
        )
        for number in range(draw.randint(1, 5))
    )
    nodes = tuple(
        Node(f"n{number}", draw.randint(1, 8), GPUS[draw.choice(_GPUS)])
        for number in range(draw.randint(1, 3))
    )
    objective = draw.choice(["throughput", "weighted", "goodput"])
    limits = Limits(kv_bytes=draw.choice([None, None, 8 * 2**30]))
    return Problem(demands, nodes, limits, objective)


def random_layout(shop: UnitBuilder, draw: random.Random) -> list[PlacedUnit] | None:
    """Random meshes until none fits, each model in some of them at random parts of its rate; None
    where a unit does not fit its mesh."""
    room, meshes = shop.room([]), []
    while options := [mesh for mesh in shop.meshes if room.fits(*mesh)]:
        meshes.append(draw.choice(options))
        room.take(*meshes[-1])
        if draw.random() < 0.1:
            break
    offers: list[list[tuple[int, float]]] = [[] for _ in meshes]
    for index, demand in enumerate(shop.estimator.problem.demands):
        places = draw.sample(range(len(meshes)), draw.randint(1, min(3, len(meshes))))
        parts = [draw.random() + 0.01 for _ in places]
        for place, part in zip(places, parts, strict=True):
            offers[place].append((index, demand.rate * part / sum(parts)))
    units = [
        shop.unit(gpu, tp, each) for (gpu, tp), each in zip(meshes, offers, strict=True) if each
    ]
    return None if any(unit is None for unit in units) else [unit for unit in units if unit]


@settings(max_examples=examples(8, 20))
@given(seed=st.integers(0, 2**32))
def test_no_random_layout_exceeds_the_bound(seed: int) -> None:
    draw = random.Random(seed)
    shop = builder(random_problem(draw))
    layouts = [layout for _ in range(40) if (layout := random_layout(shop, draw))]
    if not layouts:
        return
    bound = upper_bound(shop, 5.0)
    assert bound is not None
    for layout in layouts:
        assert sum(unit.estimate.value for unit in layout) <= bound * (1 + 1e-9)


@settings(max_examples=examples(20, 60))
@given(
    seed=st.integers(0, 2**32),
    stride=st.sampled_from([1, 4]),
    melt=st.booleans(),
    sampled=st.booleans(),
)
def test_each_tenant_of_a_unit_is_no_better_than_one_of_its_modes(
    seed: int, stride: int, melt: bool, sampled: bool
) -> None:
    draw = random.Random(seed)
    shop = builder(random_problem(draw))
    layouts = [layout for _ in range(10) if (layout := random_layout(shop, draw))]
    for unit in (unit for layout in layouts for unit in layout):
        found = unit.estimate
        for number, (index, rate) in enumerate(unit.offers):
            tenant, loads = found.tenants[number], found.loads
            modes = modes_of(
                shop.estimator, index, unit.gpu, unit.tp, Detail(stride, melt, sampled)
            )
            assert modes is not None
            batch_blocks = tenant.batch * tenant.cost.sequence_blocks
            assert tenant.batch == 1 or batch_blocks <= found.quotas[number]
            lane = loads.lanes[number] if loads.shared else loads.sms[number]
            mine = [lane, loads.prefill[number], loads.sms[number], loads.bandwidth[number]]
            table = modes.table[:, [LANE, PREFILL, SMS, BANDWIDTH]] * rate
            as_small = modes.table[:, KV] <= batch_blocks * _LARGEST_BLOCK
            assert (table[as_small] <= [each * (1 + 1e-9) for each in mine]).all(axis=1).any()


def test_one_model_alone_reaches_the_bound() -> None:
    """Where nothing is melted and nothing shared, the relaxation gives nothing away."""
    for rate in (1.0, 1000.0):
        demand = Demand("m", SHAPES["llama-7b"], rate, 161, 338, 2048, 1024)
        shop = builder(Problem((demand,), (Node("n", 1, GPUS["A100-80GB"]),)))
        unit = shop.unit(GPUS["A100-80GB"], 1, [(0, rate)])
        bound = upper_bound(shop, 5.0)
        assert unit is not None and bound is not None
        assert unit.estimate.value <= bound <= unit.estimate.value * 1.1


def test_models_that_fit_nowhere_together_have_no_bound() -> None:
    demands = tuple(
        Demand(f"m{number}", SHAPES["llama-13b"], 1.0, 161, 338, 2048, 64) for number in range(4)
    )
    shop = builder(Problem(demands, (Node("n", 1, GPUS["A100-80GB"]),)))
    assert upper_bound(shop, 5.0) == float("-inf")
