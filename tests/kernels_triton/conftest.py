"""Triton kernels run in the interpreter: this folder needs a pytest process of its own.

Triton reads the variable when a kernel is decorated, so it is set before any is imported.
"""

import os

import pytest

os.environ["TRITON_INTERPRET"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--one-case", action="store_true", help="the first case of each test function alone"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--one-case"):
        return
    firsts: dict[str, pytest.Item] = {}
    for item in items:
        if not any(item.get_closest_marker(each) for each in ("slow", "gpu", "hosts")):
            firsts.setdefault(item.nodeid.partition("[")[0], item)
    kept = list(firsts.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
