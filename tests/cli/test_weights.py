"""`muxcluster park`, `wake` and `pin` against a scripted server."""

import json
from collections.abc import Iterator

import pytest

from tests.cli.calls import call, refusal
from tests.cli.scripted import Scripted, scripted_server


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    with scripted_server() as found:
        yield found


def told(weights: str, order: str | None = None) -> dict[str, object]:
    return {"model": "a/b", "units": {"u-0": {"weights": weights, "order": order}}}


@pytest.mark.parametrize(
    ("command", "target", "shown"),
    [
        (("park",), "/sleep?model=a%2Fb&hold=false", told("parked", "park")),
        (("park", "--hold"), "/sleep?model=a%2Fb&hold=true", told("parked", "hold")),
        (("wake",), "/wake_up?model=a%2Fb", told("resident")),
        (("pin",), "/pin?model=a%2Fb", told("resident", "pin")),
        (("pin", "--off"), "/unpin?model=a%2Fb", told("resident")),
        (("wake", "--unit", "u-0"), "/wake_up?model=a%2Fb&unit=u-0", told("resident")),
    ],
)
def test_the_server_is_asked_and_its_answer_shown(
    capsys, scripted: Scripted, command: tuple[str, ...], target: str, shown: dict
) -> None:
    scripted.answer = shown
    name, *options = command
    with_key = (name, "a/b", *options, "--url", f"{scripted.url}/v1", "--admin-key", "secret")
    code, out, err = call(capsys, *with_key)
    state = shown["units"]["u-0"]
    order = f" ({state['order']})" if state["order"] else ""
    assert (code, out, err) == (0, f"a/b on u-0: {state['weights']}{order}\n", "")
    assert (scripted.asked, scripted.keys) == ([target], ["Bearer secret"])
    assert json.loads(call(capsys, *with_key, "--json")[1]) == shown


def test_a_refusal_is_one_line_and_exit_code_2(capsys, scripted: Scripted) -> None:
    scripted.status = 400
    scripted.answer = {"error": {"message": "a is pinned: unpin it first"}}
    assert "a is pinned: unpin it first" in refusal(capsys, "park", "a", "--url", scripted.url)
    assert "is not http://host:port" in refusal(capsys, "wake", "a", "--url", "nowhere")


def test_a_server_that_cannot_do_it_now_is_exit_code_1(capsys, scripted: Scripted) -> None:
    scripted.status = 503
    scripted.answer = {"error": {"message": "a is loading"}}
    code, out, err = call(capsys, "wake", "a", "--url", scripted.url)
    assert (code, out) == (1, "")
    assert err.endswith(": a is loading\n") and err.count("\n") == 1
    scripted.status, scripted.answer = 200, ["another server"]
    assert call(capsys, "pin", "a", "--url", scripted.url)[0] == 1
