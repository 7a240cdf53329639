"""Hostile chat templates: they hit a limit, and nobody else notices."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from muxcluster.core.errors import (
    ChatTemplateLimit,
    ContextLengthExceeded,
    InvalidValue,
    LoadError,
    RequestError,
)
from muxcluster.text.rendering.pool import RenderPool
from muxcluster.text.rendering.process import RenderLimits
from muxcluster.text.template import ChatTemplate, RenderOptions

LIMITS = RenderLimits(cpu_s=0.3, memory_bytes=256 * 2**20)
TALK = [{"role": "user", "content": "hi"}]
GOOD = "{{ messages[0].content }}!"
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = (
    "{% set ns = namespace(s='ab') %}"
    "{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"
)


@pytest.fixture
def pool() -> Iterator[RenderPool]:
    with RenderPool(LIMITS) as made:
        yield made


def template(pool: RenderPool, source: str) -> ChatTemplate:
    return ChatTemplate(source, {}, pool)


@pytest.mark.parametrize(
    ("source", "limit"),
    [
        (LOOPS, "0.3 s"),
        ("{% set x = (messages | length + 8) ** (9 ** 9) %}", "0.3 s"),
        ("{{ lipsum(n=100000000) }}", "0.3 s"),
        ("{% macro m() %}{% for i in range(9) %}{{ m() }}{% endfor %}{% endmacro %}"
         "{{ m() }}", None),
        (DOUBLING, "256 MiB"),
        ("{{ 'x' * 10 ** 12 }}", "256 MiB"),
        ("{{ '%1000000000000d' % 1 }}", None),
        ("{{ 'x'.ljust(10 ** 12) }}", "256 MiB"),
        ("{{ messages * 10 ** 10 }}", "256 MiB"),
        ("{{ '{:>1000000000000}'.format(1) }}", "256 MiB"),
        ("{% set ns = namespace(l=[]) %}{% for i in range(99999) %}"
         "{% set ns.l = [ns.l, ns.l | string] %}{% endfor %}", None),
        ("{{ raise_exception('x' * (messages | length) * 10 ** 7) }}", None),
        ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", None),
        ("{{ self._TemplateReference__context }}", None),
        ("{{ messages.__class__ }}", None),
        ("{{ '\\ud800' }}", None),
        ("{% include 'x' %}", None),
    ],
    ids=range(17),
)  # fmt: skip
def test_a_hostile_template_is_an_error_of_its_request(source: str, limit: str | None) -> None:
    """Whichever it is, it is a request error of moderate length, and others go on."""
    # Strings of 256 MiB take a busy machine more than 0.3 s.
    limits = replace(LIMITS, cpu_s=10.0) if limit == "256 MiB" else LIMITS
    with RenderPool(limits) as pool:
        check_hostile(pool, source, limit)


def check_hostile(pool: RenderPool, source: str, limit: str | None) -> None:
    hostile, good = template(pool, source), template(pool, GOOD)
    try:
        text = hostile.render(TALK)
    except RequestError as error:
        assert len(str(error)) < 500
        assert error.param == "messages"
        assert limit is None or (isinstance(error, ChatTemplateLimit) and limit in str(error))
    else:
        assert text == "" and limit is None  # an attribute that the sandbox hides is undefined
    assert good.render(TALK) == "hi!"


def test_a_bomb_in_the_source_is_found_at_load(
    pool: RenderPool, text_directory: object, tmp_path: Path
) -> None:
    """The compiler folds constants, so this one needs no rendering."""
    assert callable(text_directory)
    path = text_directory("bytes", chat_template="{{ 9 ** (9 ** 9) }}")
    with pytest.raises(LoadError, match="0.3 s"):
        ChatTemplate.load(path, pool)
    path = text_directory("bytes", chat_template="{{ " + "(" * 10_000 + "1" + ")" * 10_000 + " }}")
    with pytest.raises(LoadError):
        ChatTemplate.load(path, pool)


def test_a_bad_template_stays_bad_when_it_is_loaded_again(pool: RenderPool) -> None:
    for _ in range(2):
        with pytest.raises(InvalidValue):
            template(pool, "{% if %}")


def test_the_loop_and_other_templates_go_on_meanwhile(pool: RenderPool) -> None:
    """Of three hostile templates, each several times, none keeps a good one waiting to its end."""
    hostile = [template(pool, LOOPS + f"{{# {i} #}}") for i in range(3)]
    good = template(pool, GOOD)

    async def run() -> None:
        first = [asyncio.create_task(each.render_async(TALK)) for each in hostile]
        await asyncio.wait(first)
        again = [asyncio.create_task(each.render_async(TALK)) for each in hostile for _ in range(2)]
        await asyncio.sleep(0)
        for _ in range(50):
            assert await good.render_async(TALK) == "hi!"
        assert not all(task.done() for task in again)
        ended = await asyncio.gather(*first, *again, return_exceptions=True)
        assert all(isinstance(each, ChatTemplateLimit) for each in ended)

    asyncio.run(run())


def test_one_hostile_template_leaves_a_process_to_the_others(pool: RenderPool) -> None:
    """Its first jobs, too, before it is known to be hostile."""
    hostile, good = template(pool, LOOPS), template(pool, GOOD)

    async def run() -> None:
        tasks = [asyncio.create_task(hostile.render_async(TALK)) for _ in range(8)]
        await asyncio.sleep(0)
        assert await good.render_async(TALK) == "hi!"
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # cancelled ones that waited never run: the pool is free once the first has ended
        while True:
            try:
                assert await hostile.render_async(TALK) == ""
            except ChatTemplateLimit:
                return

    asyncio.run(run())


def test_callers_that_give_up_cost_no_process(pool: RenderPool) -> None:
    chat = template(pool, GOOD)
    before = pool.pids

    async def run() -> None:
        for i in range(200):
            task = asyncio.create_task(chat.render_async(TALK))
            await asyncio.sleep(0 if i % 2 else 0.0005)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert await chat.render_async(TALK) == "hi!"

    asyncio.run(run())
    assert pool.pids == before


def test_a_loop_that_closes_in_the_middle(pool: RenderPool) -> None:
    hostile, good = template(pool, LOOPS), template(pool, GOOD)

    async def leave() -> None:
        asyncio.ensure_future(hostile.render_async(TALK))
        await asyncio.sleep(0.05)

    asyncio.run(leave())
    assert good.render(TALK) == "hi!"
    with pytest.raises(ChatTemplateLimit):
        hostile.render(TALK)


def test_a_killed_process_is_replaced_and_the_job_tried_again(pool: RenderPool) -> None:
    chat = template(pool, GOOD)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGKILL)
    assert chat.render(TALK) == "hi!"
    (pid,) = pool.pids
    os.kill(pid, signal.SIGKILL)
    assert asyncio.run(chat.render_async(TALK)) == "hi!"


def test_a_job_that_kills_its_process_twice_is_refused(
    pool: RenderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = template(pool, GOOD)
    ask = type(pool)._process

    def killed(self: RenderPool, place: object) -> object:
        process = ask(self, place)  # type: ignore[arg-type]
        os.kill(process.pid, signal.SIGKILL)
        return process

    monkeypatch.setattr(RenderPool, "_process", killed)
    with pytest.raises(ChatTemplateLimit, match="twice"):
        chat.render(TALK)


def test_a_stopped_process_is_given_up() -> None:
    with RenderPool(RenderLimits(wall_s=0.5)) as pool:
        chat = template(pool, GOOD)
        (pid,) = pool.pids
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ChatTemplateLimit):
            asyncio.run(chat.render_async(TALK))
        assert chat.render(TALK) == "hi!"


def test_a_prompt_over_the_limit_is_not_sent(pool: RenderPool) -> None:
    chat = template(pool, "{{ 'x' * 1000 }}")
    assert len(chat.render(TALK, RenderOptions(max_chars=1000))) == 1000
    with pytest.raises(ContextLengthExceeded, match="1000 characters"):
        chat.render(TALK, RenderOptions(max_chars=999))


@pytest.mark.parametrize("value", [object(), {1: {2: object()}}])
def test_values_that_are_no_json_are_refused(pool: RenderPool, value: object) -> None:
    chat = template(pool, GOOD)
    with pytest.raises(InvalidValue, match="JSON"):
        chat.render(TALK, RenderOptions(kwargs={"x": value}))


def test_large_messages_pass_both_ways(pool: RenderPool) -> None:
    chat = template(pool, GOOD)
    long = [{"role": "user", "content": "ü" * 3_000_000}]
    assert chat.render(long) == "ü" * 3_000_000 + "!"
    assert asyncio.run(chat.render_async(long)) == "ü" * 3_000_000 + "!"


def test_the_process_gets_no_secrets_and_imports_nothing_heavy(
    pool: RenderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret-token")
    chat = template(pool, GOOD)
    (pid,) = pool.pids
    assert b"secret-token" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert chat.render(TALK) == "hi!"
    maps = Path(f"/proc/{pid}/maps").read_text()
    assert "jinja" not in maps and "torch" not in maps and "_raylet" not in maps
    assert "numpy" not in maps


def test_it_ends_with_its_parent() -> None:
    """Also where the parent has no chance to say so."""
    code = (
        "from muxcluster.text.rendering.pool import RenderPool\n"
        "from muxcluster.text.template import ChatTemplate\n"
        "pool = RenderPool()\nChatTemplate('x', {}, pool)\nprint(*pool.pids, flush=True)\n"
        "input()"
    )
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
    deadline_s = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
