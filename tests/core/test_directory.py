"""A directory is named by its content, and says nothing secret."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.directory import Directory, KeyPair, UnitAddress
from muxcluster.core.served import ServedModel

MODEL = ServedModel("m", "/m", 64, 100, (0,))
KEYS = KeyPair(b"p" * 40, b"s" * 40)
FULL = Directory(
    models=(MODEL,),
    routes={"m": ("a", "b")},
    units={"a": UnitAddress("a", "tcp://10.0.0.1:1", b"k" * 40)},
    draining={"c": 30.0},
    unplaced={"n": 10.0},
    client_key=KEYS,
)
IDS = st.text("ab", min_size=1, max_size=2)


@given(st.dictionaries(IDS, st.lists(IDS, max_size=3).map(tuple)), st.dictionaries(IDS, st.just(1)))
def test_equal_content_has_one_version_whatever_its_order(
    routes: dict[str, tuple[str, ...]], draining: dict[str, float]
) -> None:
    directory = Directory((MODEL,), routes, draining=draining)
    backwards = Directory(
        (MODEL,),
        dict(reversed(routes.items())),
        draining=dict(reversed(draining.items())),
    )
    assert directory.version == backwards.version
    assert replace(directory, routes={**routes, "new": ("a",)}).version != directory.version


def test_every_part_changes_the_version() -> None:
    others = [
        replace(FULL, models=(replace(MODEL, path="/n"),)),
        replace(FULL, routes={"m": ("a",)}),
        replace(FULL, units={"a": UnitAddress("a", "tcp://10.0.0.1:2", b"k" * 40)}),
        replace(FULL, units={"a": UnitAddress("a", "tcp://10.0.0.1:1", b"l" * 40)}),
        replace(FULL, draining={"c": 31.0}),
        replace(FULL, unplaced={}),
        replace(FULL, client_key=None),
    ]
    assert len({FULL.version, *(other.version for other in others)}) == len(others) + 1


def test_links_are_kept_to_all_units_that_are_named() -> None:
    coming = UnitAddress("d", "ipc:///d")
    assert replace(FULL, units={**FULL.units, "d": coming}).unit_ids() == ("a", "b", "c", "d")


def test_the_secret_key_is_not_shown() -> None:
    assert "s" * 40 not in repr(FULL) and "p" * 40 in repr(FULL)
