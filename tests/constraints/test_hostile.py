"""Hostile schemas and grammars: refused or followed in bounded time, and nobody else notices."""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muxcluster.constraints import grammars
from muxcluster.constraints.matching import Matching, TokenMasks
from muxcluster.constraints.process.client import MaskClient
from muxcluster.constraints.process.supervisor import MaskProcess
from muxcluster.constraints.rows import MaskModel, MaskRow
from muxcluster.constraints.vocabulary import load_vocabulary
from muxcluster.core.errors import InvalidValue
from muxcluster.core.sampling import Constraint
from tests.constraints.sampling import Sampler
from tests.constraints.schemas import Schemas
from tests.constraints.test_process import children_of

GOOD = Constraint(grammars.json_object())
EMPTY = np.empty(0, np.int32)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def schema(value: Any) -> Callable[[], str]:
    return lambda: grammars.json_schema(value, "schema")


HOSTILE: dict[str, Callable[[], str]] = {
    "deep": schema(nested(25)),
    "too deep": schema(nested(1000)),
    "a huge enum": schema({"enum": [f"value {number}" for number in range(6_000)]}),
    "a large schema": schema({"enum": ["x" * 1000] * 1100}),
    "many properties": schema(
        {"properties": {f"p{number}": {"pattern": "^(a|b)+$"} for number in range(300)}}
    ),
    "many patterns": schema(
        {"patternProperties": {f"^p{number}x[a-z]+": {} for number in range(60)}}
    ),
    "itself": schema({"$ref": "#"}),
    "a circle": schema(
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    ),
    "all of itself": schema({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}),
    "itself inside, required": schema({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
    "a product of unions": schema(
        {"allOf": [{"anyOf": [{"pattern": f"{one}x{two}"} for two in range(9)]}
                   for one in range(20)], "type": "string"}
    ),
    "long strings": schema({"type": "string", "minLength": 2**31 - 1}),
    "long lists": schema({"items": {"type": "array", "minItems": 10**9}, "minItems": 10**9}),
    "small steps": schema({"type": "number", "multipleOf": 1e-30}),
    "nested repetition": lambda: grammars.regex("(((a+)+)+b)" * 50, "p"),
    "large repetition": lambda: grammars.regex("((a{1,1000}){1,1000}){1,1000}", "p"),
    "many states": lambda: grammars.regex("(.*a.{30}){3}", "p"),
    "many alternatives": lambda: grammars.regex(
        "|".join(f"{number}x*" for number in range(9_000)), "p"
    ),
    "many brackets": lambda: grammars.regex("(" * 30_000 + "a" + ")" * 30_000, "p"),
    "a class without end": lambda: grammars.regex("[", "p"),
    "out of the rule": lambda: grammars.regex("a/\nstart: /b\\", "p"),
    "ambiguous rules": lambda: grammars.lark("start: start start | start \"a\" | \"a\"", "p"),
    "rules right to left": lambda: grammars.lark('start: "a" start |', "p"),
    "conjunctions": lambda: grammars.lark(
        "start: A\nA: " + " & ".join(f"/(.*x.{{{number}}}y.*)/" for number in range(5, 25)), "p"
    ),
    "long rules": lambda: grammars.lark(
        "start: r0\n"
        + "\n".join(f"r{number}: r{number + 1} r{number + 1}" for number in range(9_000))
        + '\nr9000: "a"',
        "p",
    ),
    "counts": lambda: grammars.lark('start: "a"{1000000000} "b"{5,2000000000}', "p"),
    "deep GBNF": lambda: grammars.lark("root ::= " + "(" * 3000 + '"a"' + ")" * 3000, "p"),
    "GBNF of nothing": lambda: grammars.lark("root ::= other", "p"),
    "options": lambda: grammars.lark("%llguidance 3\nstart: x", "p"),
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(model_of: Callable[[str], MaskModel]) -> MaskModel:
    return model_of("bytes")


@pytest.fixture(scope="module")
def process(plain: MaskModel) -> Iterator[MaskProcess]:
    made = MaskProcess([plain])
    assert made.check("bytes", GOOD) is None
    yield made
    made.close()


def try_hostile(
    make: Callable[[], str], process: MaskProcess, client: MaskClient, sampler: Sampler, name: str
) -> str | None:
    """Check the grammar, and draw a few tokens if it is good; return what is wrong with it."""
    try:
        constraint = Constraint(make())
    except InvalidValue as error:
        return error.message
    problem = process.check("bytes", constraint)
    tokens: list[int] = []
    while problem is None and len(tokens) < 8:
        row = MaskRow("bytes", name, constraint, np.array(tokens, np.int32))
        masks = client.begin([row]).wait()
        problem = masks.errors.get(0)
        if problem is not None or masks.must_end[0]:
            break
        tokens.append(sampler.next_token(masks, 0, 1, len(tokens)))
    return problem


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_harms_nobody(name: str, process: MaskProcess, plain: MaskModel) -> None:
    sampler = Sampler("bytes", load_vocabulary(plain))
    matching = Matching({"bytes": TokenMasks(load_vocabulary(plain))})
    wanted = matching.masks([MaskRow("bytes", "good", GOOD, EMPTY)])
    clients = [MaskClient(process.address), MaskClient(process.address)]
    num_good, is_over = 0, threading.Event()

    def others() -> None:
        nonlocal num_good
        while not is_over.is_set():
            found = clients[1].begin([MaskRow("bytes", "good", GOOD, EMPTY)]).wait()
            assert not found.errors
            assert np.array_equal(found.bits, wanted.bits)
            num_good += 1
            time.sleep(0.005)

    thread = threading.Thread(target=others)
    thread.start()
    num_restarts = process.num_restarts
    problem = try_hostile(HOSTILE[name], process, clients[0], sampler, name)
    is_over.set()
    thread.join()
    for client in clients:
        client.close()
    assert num_good > 0
    assert problem is None or 0 < len(problem) < 1000
    assert process.num_restarts == num_restarts
    assert process.check("bytes", GOOD) is None


def mutated(text: str, chance: random.Random) -> str:
    """Return text with some characters lost, doubled or moved."""
    chars = list(text)
    for _ in range(chance.randrange(1, 6)):
        at, other = chance.randrange(len(chars)), chance.randrange(len(chars))
        match chance.randrange(4):
            case 0:
                chars[at] = ""
            case 1:
                chars[at] *= chance.choice((2, 3, 300))
            case 2:
                chars[at], chars[other] = chars[other], chars[at]
            case _:
                chars[at] = chance.choice('(){}[]|&~*+?\\/"^$.:,<>\n 0\x00\u2028é')
    return "".join(chars)


SEEDS = (
    'start: ( f_foo | f_bar )* f_end\nf_end: TEXT\nTEXT: /(.|\\n)*/\nf_foo[lazy]: TEXT "<f"\n'
    'f_bar: "a"{2,5} %json { "type": "object" } <[3-9]>\n',
    'root ::= item+ ws\nitem ::= [a-z]+ | "x" ("," item){1,3}\nws ::= [ \\t\\n]*\n',
    "(?i)([a-z]{2,5}|\\d+\\.\\d{1,3}|[^\\s/]+)*(foo|bar)?",
)


def fuzzed(seed: int) -> str:
    """Return a random grammar that is likely to be wrong. Raises InvalidValue."""
    chance = random.Random(seed)
    kind = seed % 4
    if kind == 3:
        text = mutated(json.dumps(Schemas(seed).draw()), chance)
        try:
            value = json.loads(text)
        except ValueError:
            value = {**Schemas(seed).draw(), "pattern": mutated("^[a-z]{1,4}$", chance)}
        return grammars.json_schema(value, "schema")
    text = mutated(SEEDS[kind], chance)
    return grammars.regex(text, "p") if kind == 2 else grammars.lark(text, "p")


def fuzz(process: MaskProcess, plain: MaskModel, seeds: range) -> int:
    """Try random grammars; return how many were good."""
    sampler = Sampler("bytes", load_vocabulary(plain))
    client, num_good = MaskClient(process.address), 0
    for seed in seeds:
        num_good += try_hostile(partial(fuzzed, seed), process, client, sampler, f"{seed}") is None
    client.close()
    return num_good


def test_random_grammars(process: MaskProcess, plain: MaskModel) -> None:
    num_restarts = process.num_restarts
    assert 8 < fuzz(process, plain, range(60)) < 56
    assert process.num_restarts == num_restarts


@pytest.mark.slow
def test_5000_random_grammars(process: MaskProcess, plain: MaskModel) -> None:
    """No hang, no death of the server, and no memory that grows with what was refused."""
    num_restarts = process.num_restarts
    fuzz(process, plain, range(10_000, 10_500))
    before = resident_bytes(process)
    fuzz(process, plain, range(11_000, 16_000))
    assert process.num_restarts == num_restarts
    assert resident_bytes(process) < before + 100 * 2**20


def resident_bytes(process: MaskProcess) -> int:
    """Memory of the mask process and its server."""
    assert process.pid is not None
    pids = [process.pid, *children_of(process.pid)]
    statuses = [Path(f"/proc/{pid}/status").read_text(encoding="ascii") for pid in pids]
    return sum(
        1024 * int(line.split()[1])
        for status in statuses
        for line in status.splitlines()
        if line.startswith("VmRSS:")
    )
