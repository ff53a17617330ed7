"""Plain values over the border: exact both ways, and safe to compare whatever a program sends."""

import collections
import contextlib
import decimal
import fractions
import json
import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.rewards.code.plain_values import (
    MAX_DEPTH,
    MAX_NODES,
    MAX_TREE_BYTES,
    BadTree,
    NotPlain,
    decode,
    encode,
    holds_nan,
    matches,
    read_tree,
    truth,
)


def _sent(value: Any) -> Any:
    """What arrives of a value."""
    return read_tree(json.dumps(encode(value)).encode())


NUMBERS = st.integers() | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False) | st.booleans()
SCALARS = st.none() | NUMBERS | st.text() | st.binary(max_size=20)
KEYS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3), max_leaves=5
)
LITERALS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.sets(KEYS, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(LITERALS)
def test_literals_come_back_exactly(value: Any) -> None:
    back = decode(_sent(value))
    assert back == value
    assert type(back) is type(value)
    assert matches(_sent(value), value)
    assert truth(_sent(value)) is bool(value)


@settings(deadline=None)
@given(LITERALS, LITERALS)
def test_matches_is_python_equality(value: Any, expected: Any) -> None:
    assert matches(_sent(value), expected) == (value == expected)


SMALL = st.sampled_from([0, 1, 1.0, True, False, 0.0, -0.0, "", "1", b"", None, (), (1,), frozenset({1}), 1 + 0j])
SMALL_LITERALS = (
    SMALL | st.lists(SMALL, max_size=2) | st.sets(SMALL, max_size=3) | st.dictionaries(SMALL, SMALL, max_size=2)
)


@settings(deadline=None, max_examples=400)
@given(SMALL_LITERALS, SMALL_LITERALS)
def test_matches_is_python_equality_where_types_meet(value: Any, expected: Any) -> None:
    assert matches(_sent(value), expected) == (value == expected)


@pytest.mark.parametrize(
    "value",
    [
        10**5000,
        -(2**53),
        2**53 - 1,
        float("inf"),
        -0.0,
        5e-324,
        complex(1, float("-inf")),
        "\ud800 \x00 é",
        b"\x00\xff",
        bytearray(b"ab"),
        range(3, 10**30, 2),
        decimal.Decimal("1.10"),
        decimal.Decimal("-Infinity"),
        decimal.Decimal("1E+5"),
        fractions.Fraction(-3, 7),
        collections.Counter("aab"),
        collections.OrderedDict([(2, 1), (1, 2)]),
        collections.defaultdict(None, {1: [2]}),
        collections.deque([1, (2,)]),
        {(1, 2): frozenset({3})},
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_plain_values(value: Any) -> None:
    back = decode(_sent(value))
    assert type(back) is type(value)
    assert back == value
    if type(value) in (float, decimal.Decimal, collections.OrderedDict):  # -0.0, 1.10, the order
        assert str(back) == str(value)


def test_what_equals_a_literal_in_python_matches_it() -> None:
    assert matches(_sent(collections.Counter("aab")), {"a": 2, "b": 1})
    assert matches(_sent(collections.OrderedDict(a=1)), {"a": 1})
    assert matches(_sent(frozenset({1, 2})), {1, 2})
    assert matches(_sent(decimal.Decimal("0.5")), 0.5)
    assert matches(_sent(fractions.Fraction(4, 2)), 2)
    assert not matches(_sent(collections.deque([1])), [1])
    assert not matches(_sent((1, 2)), [1, 2])
    assert not matches(_sent(range(2)), [0, 1])


def test_nan_and_json_lists() -> None:
    assert matches(_sent(math.nan), math.nan)
    assert not matches(_sent(math.nan), 1.0)
    assert not matches(_sent(1.0), math.nan)
    assert matches(_sent([(1, 2)]), [[1, 2]], lists_are_tuples=True)
    assert matches(_sent({"a": (1, (2,))}), {"a": [1, [2]]}, lists_are_tuples=True)
    assert not matches(_sent({1, 2}), [1, 2], lists_are_tuples=True)


@settings(deadline=None)
@given(LITERALS, st.sampled_from([math.nan, complex(0.0, math.nan), decimal.Decimal("NaN")]))
def test_nan_is_found_anywhere(value: Any, nan: Any) -> None:
    assert not holds_nan(_sent([value, "nan", ["float", "nan"], {"float": "nan"}, math.inf]))
    for holder in (nan, [value, nan], {1: (value, [nan])}, {(nan, 1): value}, {1: value, 2: {nan}}):
        assert holds_nan(_sent(holder))


class _Liar(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def _cyclic() -> Any:
    items: list[Any] = []
    items.append(items)
    return items


def _deep() -> Any:
    value: Any = 1
    for _ in range(MAX_DEPTH + 1):
        value = [value]
    return value


def _doubled() -> Any:
    value: Any = [1]
    for _ in range(40):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (_Liar(1), "_Liar is not plain data"),
        ([_Liar(1)], "_Liar"),
        ({_Liar(1): 2}, "_Liar"),
        (object(), "object"),
        (len, "builtin_function"),
        (int, "type is not plain data"),
        ((item for item in ()), "generator"),
        (collections.namedtuple("P", "x")(1), "P is not plain data"),
        (_cyclic(), "within itself"),
        (_deep(), "nested deeper"),
        (_doubled(), f"more than {MAX_NODES}"),
        ("x" * (MAX_TREE_BYTES + 1), f"more than {MAX_TREE_BYTES} characters"),
        (["x" * 1000] * 5000, f"more than {MAX_TREE_BYTES} characters"),
        (b"x" * (MAX_TREE_BYTES // 2 + 1), "characters"),
        (1 << (4 * MAX_TREE_BYTES + 4), "characters"),
        (decimal.Decimal("1E+9999999"), "too many digits"),
        (fractions.Fraction(1, 3**10000), "too many digits"),
    ],
    ids=range(17),
)
def test_what_is_not_plain(value: Any, why: str) -> None:
    with pytest.raises(NotPlain, match=why):
        encode(value)


HOSTILE = [
    {},
    [],
    [[]],
    [1],
    ["list"],
    ["list", 1],
    ["list", {}],
    ["lies", [1]],
    ["dict", [1]],
    ["dict", [[1]]],
    ["dict", [[1, 2, 3]]],
    ["dict", [[["list", []], 1]]],
    ["set", [["list", []]]],
    ["set", [["set", [1]]]],
    ["set", [["bytearray", "00"]]],
    ["int", "zz"],
    ["int", ""],
    ["int", 5],
    ["int", "1_0"],
    ["int", " 1"],
    ["float", "1.5"],
    ["float", "NaN"],
    ["complex", "1", 2.0],
    ["complex", ["int", "ff"], 2.0],
    ["complex", ["complex", 1.0, 2.0], 2.0],
    ["bytes", "0"],
    ["bytes", "zz"],
    ["decimal", "1e5"],
    ["decimal", "sNaN"],
    ["decimal", "1E9999999"],
    ["decimal", "٣"],
    ["fraction", 1, 0],
    ["fraction", 1, -2],
    ["fraction", 1.5, 2],
    ["fraction", ["int", "f" * 9000], 2],
    ["range", 0, 5],
    [["list", []], ["list", []]],
    [None, [1]],
    [[[]], [1]],
]


@pytest.mark.parametrize("tree", HOSTILE, ids=map(str, range(len(HOSTILE))))
def test_trees_that_are_none(tree: Any) -> None:
    with pytest.raises(BadTree):
        decode(tree)
    with contextlib.suppress(BadTree):
        assert not holds_nan(tree)
    for expected in (0, 1, 1.5, None, "", b"", [], [1], (), {1}, set(), {}, {1: 2}, {(): 1}, frozenset({1})):
        assert not matches(tree, expected)
        assert not matches(["list", [tree]], [expected])
        assert not matches(["set", [tree]], {expected} if not isinstance(expected, (list, set, dict)) else {1})
    if not (isinstance(tree, list) and tree[:1] in (["dict"], ["set"])):  # whose items `truth` does not look at
        assert truth(tree) is None


@pytest.mark.parametrize(
    "message",
    [
        *(b"", b"{", b"\xff", b'"\xc3\xa9"', b"NaN", b"[Infinity]", b"{}", b'[{"a": 1}]', b"[" * 100_000),
        *(b"1" * 5000, b"[1] [2]", b'"' + b"x" * MAX_TREE_BYTES + b'"'),
    ],
    ids=range(12),
)
def test_messages_that_are_none(message: bytes) -> None:
    with pytest.raises(BadTree):
        read_tree(message)


def test_deep_trees_do_not_end_the_stack() -> None:
    nested: Any = 1
    for _ in range(900):
        nested = ["tuple", [nested]]
    for tree in (["set", [nested]], ["dict", [[nested, 1]]], nested):
        for expected in ({1}, {1: 1}, (1,), ((1,),)):
            assert not matches(tree, expected)
    with pytest.raises(BadTree):
        decode(nested)


def test_comparing_takes_linear_time() -> None:
    colliding = [["int", f"{number * (2**61 - 1):x}"] for number in range(100_000)]
    huge = ["int", "f" * 3_000_000]
    many = set(range(100_000))
    started = time.process_time()
    assert not matches(["set", colliding], many)
    assert not matches(["set", colliding[:3]], {1, 2, 3})
    assert not matches(["set", [["frozenset", colliding]]], {1})
    assert not matches(["dict", [[key, 1] for key in colliding]], dict.fromkeys(many, 1))
    assert not matches(["fraction", huge, huge], 1)
    assert not matches(huge, 5)
    assert not matches(["set", [huge]], {5})
    assert not matches(["decimal", "1E999999"], 10)
    assert not matches(["set", [["decimal", "1E-999999"]]], {10})
    assert not matches(["range", 0, huge, 1], [1])
    assert truth(["range", 0, huge, 1]) is True
    assert time.process_time() - started < 10.0
    assert not matches(["set", [1, 1, 1]], {1})
    assert not matches(["set", [1, 1]], {1, 2})
    assert not matches(["dict", [[1, 1], [True, 1]]], {1: 1, 2: 1})
