"""What JSON said, as the types of records: the right value, or an error that names the field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.runs.typed import typed
from groupwise.types import Finish


@dataclass(frozen=True)
class Inner:
    numbers: tuple[float, ...]
    finish: Finish
    note: str | None = None


@dataclass(frozen=True)
class Outer:
    count: int
    inner: tuple[Inner, ...]
    parts: Mapping[str, float]


GOOD: dict[str, Any] = {
    "count": 3,
    "inner": [{"numbers": [1, 0.5, None, "-Infinity"], "finish": "stop", "unknown": [1]}],
    "parts": {"a": 2},
}


def test_a_record_is_made_of_what_json_has() -> None:
    made: Outer = typed(Outer, GOOD)
    (inner,) = made.inner
    assert (made.count, made.parts, inner.finish, inner.note) == (3, {"a": 2.0}, Finish.STOP, None)
    assert repr(inner.numbers) == "(1.0, 0.5, nan, -inf)"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("count", True, "count is True, expected an integer from 0"),
        ("count", -1, "count is -1"),
        ("count", 2**53 + 1, "count is 9007199254740993"),
        ("count", 3.0, "count is 3.0"),
        ("inner", {}, "inner is {}, expected a list"),
        ("inner", [5], r"inner\[0\] is 5, expected an object"),
        ("inner", [{"finish": "stop"}], "with 'numbers'"),
        (
            "inner",
            [{"numbers": [], "finish": "?"}],
            r"inner\[0\].finish is '\?', expected one of stop, length, aborted",
        ),
        ("inner", [{"numbers": [], "finish": []}], "finish is"),
        ("inner", [{"numbers": [10**400], "finish": "stop"}], r"numbers\[0\] is 10+\.\.\.0+, expected a number"),
        ("inner", [{"numbers": [], "finish": "stop", "note": 1}], "note is 1, expected a string"),
        ("parts", {"a": "1"}, "parts.* is '1', expected a number"),
    ],
)
def test_anything_else_is_named(key: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        typed(Outer, GOOD | {key: value})


def test_tables_with_other_keys_are_checked_and_returned_as_they_are() -> None:
    kinds = {"name": str, "stages": [{"steps": int}]}
    table = {"stages": [{"steps": 2, "loss": []}, {}], "seed": None}
    assert typed(kinds, table) is table
    with pytest.raises(ValueError, match=r"stages\[1\]\.steps is '2'"):
        typed(kinds, {"stages": [{}, {"steps": "2"}]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["count", "inner", "a"]), inner),
    max_leaves=8,
)


@given(value=JSON, key=st.sampled_from([*GOOD, ""]))
def test_any_value_is_refused_or_has_the_type(value: Any, key: str) -> None:
    try:
        made = typed(Outer, GOOD | {key: value} if key else value)
    except ValueError:
        return
    assert type(made.count) is int
    assert all(type(number) is float for inner in made.inner for number in inner.numbers)
    assert all(type(part) is float or math.isnan(part) for part in made.parts.values())
    json.dumps([inner.note for inner in made.inner])
