"""Values that another version of a class reads: fields that are new, gone, or missing."""

import copy
import pickle
import sys
from dataclasses import dataclass, field, make_dataclass, replace
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, create_model

from muxcluster.core.errors import EngineFailure
from muxcluster.core.inputs import carried
from muxcluster.core.inputs.carried import Carried, is_older, packed, talks_to, unpacked

HERE = sys.modules[__name__]


@dataclass(frozen=True, slots=True)
class Inner:
    """Stands for a class that is only part of others."""

    size: int


class Section(BaseModel):
    """Stands for a section of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rate: float = 1.0


def version_of_thing(monkeypatch: pytest.MonkeyPatch, *fields: Any) -> Any:
    """Make `Thing` of this module a dataclass with other fields."""
    kind: Any = make_dataclass("Thing", fields, bases=(Carried,), frozen=True, slots=True)
    kind.__module__, kind.__qualname__ = __name__, "Thing"
    monkeypatch.setattr(HERE, "Thing", kind, raising=False)
    return kind


def test_a_later_version_takes_defaults_for_what_it_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps(version_of_thing(monkeypatch, ("x", int), ("inner", Inner))(7, Inner(3)))
    later = version_of_thing(
        monkeypatch, ("inner", Inner), ("x", int), ("new", int, field(default=5))
    )
    found = pickle.loads(data)
    assert found == later(Inner(3), 7, 5)


def test_an_earlier_version_drops_what_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    later = version_of_thing(monkeypatch, ("new", str), ("x", int))
    data = pickle.dumps(later("of no use", 7))
    earlier = version_of_thing(monkeypatch, ("x", int))
    assert pickle.loads(data) == earlier(7)


def test_a_field_without_a_default_is_not_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps(version_of_thing(monkeypatch, ("x", int))(7))
    version_of_thing(monkeypatch, ("x", int), ("needed", int))
    with pytest.raises(EngineFailure, match="another version.*needed"):
        pickle.loads(data)


def test_parts_of_other_versions_are_read_by_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    data = packed({"a": (Inner(3),), "b": Section(rate=2.0), "c": Section()})
    kind: Any = make_dataclass(
        "Inner", [("hint", str, field(default="")), ("size", int, field(default=0))]
    )
    kind.__module__ = __name__
    model: Any = create_model("Section", __base__=BaseModel, extra=(int, 4))
    model.__module__ = __name__
    monkeypatch.setattr(HERE, "Inner", kind)
    monkeypatch.setattr(HERE, "Section", model)
    found = unpacked(data)
    assert found["a"] == (kind("", 3),)
    assert found["b"] == model() and found["b"].extra == 4


def test_a_section_keeps_which_fields_were_given() -> None:
    given, default = Section(rate=1.0), Section()
    found = unpacked(packed([given, default]))
    assert found == [given, default]
    assert [each.model_fields_set for each in found] == [{"rate"}, set()]


def test_a_class_that_has_moved_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    data = packed(Inner(3)).replace(b"Inner", b"Outer")
    with pytest.raises(EngineFailure, match="Outer"):
        unpacked(data)
    monkeypatch.setattr(carried, "MOVED", {f"{__name__}:Outer": f"{__name__}:Inner"})
    assert unpacked(data) == Inner(3)


def test_copies_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    thing = version_of_thing(monkeypatch, ("x", int), ("y", tuple, ()))(1, (Inner(2),))
    assert copy.deepcopy(thing) == copy.copy(thing) == thing == replace(thing, x=1)


def test_versions_are_compared_by_their_numbers() -> None:
    assert is_older("0.9.0", "0.10.0") and not is_older("0.10.0", "0.9.0")
    assert not is_older("0.10.0", "0.10.0") and is_older("0.10", "0.10.1+local")


def test_neighbours_work_together_and_nobody_else() -> None:
    assert [talks_to(carried.WIRE + step) for step in (-2, -1, 0, 1, 2)] == [
        False,
        True,
        True,
        True,
        False,
    ]
