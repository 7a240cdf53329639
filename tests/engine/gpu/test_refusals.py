"""Known failures of a worker's start, from CUDA's words to ours."""

import pytest

from muxcluster.engine.gpu.refusals import is_container, why_no_context

BUSY = "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
UNREACHABLE = "Error 805: MPS client failed to connect to the MPS control daemon or the MPS server"
FULL = "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED (809)"


@pytest.mark.parametrize(
    ("said", "in_container", "means"),
    [
        (BUSY, False, "compute mode EXCLUSIVE_PROCESS"),
        (UNREACHABLE, True, "this is a container, and MPS needs the IPC namespace"),
        (UNREACHABLE, False, "a process cannot reach the MPS server"),
        (FULL, False, "takes no more processes"),
    ],
)
def test_each_names_the_cause_and_the_mend(said: str, in_container: bool, means: str) -> None:
    message = why_no_context(f"{said}\nsecond line", "log\nof it", in_container=in_container)
    assert means in message
    assert said in message
    assert "\n" not in message
    assert ("log of it" in message) == ("MPS server (" in message and "no more" not in message)


def test_other_errors_are_left_as_they_are() -> None:
    said = "OutOfMemoryError: CUDA out of memory"
    assert why_no_context(said, "log", in_container=True) == said


def test_a_container_is_known_by_its_marks() -> None:
    assert not is_container({}, [False, False])
    assert is_container({}, [False, True])
    assert is_container({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, [False])
