"""A signal ends a block once, whatever code it meets."""

import signal

import pytest

from muxcluster.cli.terminal.signals import Stopped, stoppable


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_does_not_interrupt_the_clean_up(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    cleaned = []
    with pytest.raises(Stopped) as stopped, stoppable():
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)
            cleaned.append(number)
    assert (stopped.value.signum, cleaned) == (number, [number])
    assert signal.getsignal(number) is before


def test_code_in_c_that_did_not_notice_is_no_error_of_its_own() -> None:
    """As Ray's does while it reads an answer."""
    with pytest.raises(Stopped) as stopped, stoppable():
        try:
            signal.raise_signal(signal.SIGINT)
        except Stopped as cause:
            raise SystemError(
                "<built-in method> returned a result with an exception set"
            ) from cause
    assert stopped.value.exit_code == 130


def test_another_error_of_c_code_stays() -> None:
    with pytest.raises(SystemError, match="bad argument"), stoppable():
        raise SystemError("bad argument to internal function")
