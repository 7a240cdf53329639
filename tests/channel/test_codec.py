"""Every message survives its bytes, and nothing else is taken for a message."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from muxcluster.channel.codec import (
    Abort,
    Deltas,
    Done,
    EndLine,
    EndPart,
    Failed,
    FeedPart,
    Launch,
    LoadFailed,
    Message,
    MoveAnswer,
    MoveWeights,
    Ping,
    Ready,
    Refused,
    Serving,
    Start,
    Stats,
    Submit,
    decode,
    encode,
)
from muxcluster.core.batch_part import BatchPart, LineOver, LinePlace, PartOver
from muxcluster.core.events import Finished, FinishReason, Rejected, TokenDelta
from muxcluster.core.inputs.images.prompt_image import PromptImage
from muxcluster.core.job import (
    Admission,
    Job,
    JobResult,
    Phase,
    Rows,
    SharedPrefixes,
    Side,
    SlotCopies,
    TableDelta,
    TokenLogprobs,
    WorkerSpec,
)
from muxcluster.core.kvshape import KvShape
from muxcluster.core.request import Request, ServiceClass, Slo
from muxcluster.core.residency import WeightOrder
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.served import JobRecord, ModelStats, UnitStats
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec


def same(left: object, right: object) -> bool:
    """Equal in value and type all the way down; arrays in dtype and shape too."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        assert isinstance(right, np.ndarray)
        return left.dtype == right.dtype and np.array_equal(left, right, equal_nan=True)
    if is_dataclass(left):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in fields(left))
    if isinstance(left, msgspec.Struct):
        return all(same(getattr(left, n), getattr(right, n)) for n in left.__struct_fields__)
    if isinstance(left, Mapping):
        assert isinstance(right, Mapping)
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, Sequence) and not isinstance(left, str):
        assert isinstance(right, Sequence)
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def longs(*runs: tuple[int, int, int]) -> np.ndarray:
    return np.array(runs, dtype=np.int64).reshape(-1, 3)


SAMPLING = SamplingParams(
    temperature=0.5,
    top_k=4,
    logit_bias=((3, -1.5), (9, 100.0)),
    seed=2**64 - 1,
    stop_token_ids=(1, 2),
    logprobs=0,
)
LOGPROBS = (TokenLogprobs(5, -0.25, 1, (5, 6), (-0.25, float("-inf"))),)
SPEC = UnitSpec(
    unit_id="u",
    models=(
        ModelSpec("m", "/models/m", KvShape(2, 4, 64, 2), 1000, 512, (1, 2), slo=Slo(0.4, 0.2)),
    ),
    num_blocks=64,
    block_bytes=8192,
    workers=(WorkerSpec(0, (0.3, 0.7), frozenset({Phase.PREFILL})), WorkerSpec(1, (1.0,))),
    scheduler=SchedulerSpec(lane="temporal"),
    num_host_blocks=9,
)
REQUEST = Request(
    "r",
    "m",
    ints(1, 2, 3),
    SAMPLING,
    ints(4),
    service_class=ServiceClass.BATCH,
    slo=Slo(1.0, 0.1),
    priority=-1,
    cache_salt="tenant",
    cacheable=False,
)
JOB = Job(
    job_id=7,
    model="m",
    phase=Phase.MIXED,
    worker_id=1,
    share=0.7,
    rows=Rows(
        ints(0, 3),
        ints(0, 9),
        ints(3, 1),
        np.array([False, True]),
        SharedPrefixes(ints(0, 3), ints(0, 128)),
    ),
    tables=TableDelta(ints(3), ints(0), ints(5, 6, 7, 8)[None]),
    admissions=(Admission(3, "r", ints(), 2, SAMPLING, Side.RIGHT),),
    max_steps=4,
    copies=(
        SlotCopies("n", longs((40, 3, 5), (2**40, 0, 1)), longs(), longs((0, 2**40, 16))),
        SlotCopies("m", longs(), longs((7, 8, 9)), longs()),
    ),
)
RESULT = JobResult(7, ints(11), ints(0, 1), 0.01, {1: LOGPROBS}, {0: LOGPROBS * 2})
FINISHED = Finished("r", FinishReason.STOP, 2, 16, 1, 0.1, 0.2, 0.3, 0.4, message="why")
STATS = UnitStats(
    "u",
    12.5,
    64,
    60,
    (ModelStats("m", 1, 2, 3, 4, num_lent_columns=5, num_recomputed_tokens=2**40),),
    (JobRecord(1, "m", "decode", 0, 1.0, 2.0, 3.0, 4, 5),),
)
PLACE = LinePlace("p", 1)
PART = BatchPart(
    "p",
    "m",
    "dfs",
    {"order": np.array([1, 0]), "parent": np.array([0])},
    np.ones(2),
    np.array([np.nan, 3.0]),
    {"token_s": 0.5},
    1e9,
    urgency=float("inf"),
    after=("a", "b"),
    over=(3,),
)

MESSAGES = [
    Start(SPEC),
    Ready(),
    LoadFailed("/models/m/config.json", "it is not JSON"),
    Serving(),
    Launch(JOB),
    Done(RESULT),
    Failed(7, "boom"),
    Submit(REQUEST),
    Submit(replace(REQUEST, line=PLACE)),
    FeedPart(PART),
    EndLine(LineOver(PLACE)),
    EndPart(PartOver("p")),
    Abort("r"),
    MoveWeights("c", "m", WeightOrder.HOLD),
    MoveAnswer("c"),
    MoveAnswer("c", "move_refused", "it stays"),
    Ping(),
    Deltas({"r": TokenDelta((1, 2), LOGPROBS, LOGPROBS, FINISHED)}),
    Deltas({"r": TokenDelta(rejected=Rejected("r", "context_length_exceeded", "too long"))}),
    Refused("r", "model_loading", "not yet", 2),
    Stats(STATS),
    Stats(UnitStats("u", 0.0, 1, 1)),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_survives(message: Message) -> None:
    data = encode(message)
    assert same(decode(data), message)
    assert same(decode(memoryview(data)), message)


def test_all_messages_are_tried() -> None:
    assert {type(message) for message in MESSAGES} == set(Message.__args__)


ARRAYS = hnp.arrays(
    dtype=st.sampled_from((np.bool_, np.int32, np.int64, np.uint8, np.float32, np.float64)),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)


@given(ARRAYS)
def test_every_array_survives(array: np.ndarray) -> None:
    request = Request("r", "m", array, SAMPLING)
    back = decode(encode(Submit(request)))
    assert isinstance(back, Submit)
    assert same(back.request.prompt_tokens, array)
    assert back.request.prompt_tokens.flags.writeable


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.int32).reshape(3, 4).T,
        np.arange(12, dtype=np.int32)[::-3],
        np.broadcast_to(np.int32(5), 1000),
        np.arange(3, dtype=">i4"),
    ],
    ids=["transposed", "strided", "zero-stride", "big-endian"],
)
def test_memory_layout_does_not_matter(array: np.ndarray) -> None:
    back = decode(encode(Submit(Request("r", "m", array, SAMPLING))))
    assert isinstance(back, Submit)
    assert same(back.request.prompt_tokens, array)


def test_numpy_scalars_arrive_as_numbers() -> None:
    back = decode(encode(Failed(np.int64(7), "boom")))  # type: ignore[arg-type]  # what numpy code hands in
    assert same(back, Failed(7, "boom"))


@pytest.mark.parametrize(
    "array", [np.array([object()]), np.array(["text"]), np.array(["2020"], dtype="datetime64[s]")]
)
def test_arrays_of_anything_else_are_refused(array: np.ndarray) -> None:
    with pytest.raises(TypeError, match="cannot travel"):
        encode(Submit(Request("r", "m", array, SAMPLING)))


def test_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="cannot travel"):
        encode(Abort(object()))  # type: ignore[arg-type]  # wrong on purpose


def tampered(dtype: object, shape: object, data: object) -> bytes:
    plain = msgspec.msgpack.decode(encode(Submit(REQUEST)))
    plain["request"]["prompt_tokens"] = [dtype, shape, data]
    return msgspec.msgpack.encode(plain)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"garbage",
        encode(Submit(REQUEST))[:-3],
        encode(Ping()) + b"\x00",
        msgspec.msgpack.encode({"type": "no such message"}),
        msgspec.msgpack.encode({"type": "abort"}),
        msgspec.msgpack.encode({"type": "abort", "request_id": 5}),
        msgspec.msgpack.encode({"type": "abort", "request_id": b"\xff"}),
        tampered("<i4", [3], b"\0" * 11),
        tampered("<i4", [-1], b"\0" * 12),
        tampered("|O", [1], b"\0" * 8),
        tampered("<i4,<f4", [1], b"\0" * 8),
        tampered("no dtype", [1], b"\0" * 4),
        tampered(5, [1], b"\0" * 4),
        tampered("<i4", 3, b"\0" * 12),
    ],
)
def test_malformed_bytes_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a message of the channel"):
        decode(data)


@given(st.binary(max_size=200))
def test_random_bytes_never_raise_anything_else(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a message"):
        decode(data)


@given(st.integers(0, 10_000), st.integers(0, 255))
@example(243, 44)  # a name of a dtype that numpy parses as Python
def test_a_flipped_byte_never_raises_anything_else(position: int, value: int) -> None:
    data = bytearray(encode(Launch(JOB)))
    data[position % len(data)] = value
    try:
        decode(bytes(data))
    except ValueError as error:
        assert "not a message" in str(error)


def test_a_request_brings_its_images() -> None:
    pixels = np.arange(8 * 16 * 3, dtype=np.uint8).reshape(8, 16, 3)
    image = PromptImage(1, (1, 2), b"\x00\xff" * 16, pixels)
    tokens = np.array([5, 9, 9], dtype=np.int32)
    request = Request("r", "m", tokens, SamplingParams(), images=(image, image.without_pixels()))
    message = decode(encode(Submit(request)))
    assert isinstance(message, Submit)
    found, bare = message.request.images
    np.testing.assert_array_equal(found.pixels, pixels)
    assert found.pixels.dtype == np.uint8
    assert (found.start, found.grid, found.digest) == (1, (1, 2), image.digest)
    assert bare.pixels.shape == (0, 0, 3)
