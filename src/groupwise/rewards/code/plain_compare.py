"""Comparison of a hostile program's answers, as trees of `plain_values`, with expected values.

These functions run in our process. They never raise on a tree, never run it, take time linear in its length, and never
put its elements into a hash table of more than `MAX_KEY_ITEMS`, since integers with colliding hashes are easy to write.
`matches` agrees with `decode(tree) == expected` in Python, except that NaN equals NaN; of an expected set or dict, each
key must occur exactly once.
"""

from __future__ import annotations

import json
from typing import Any

from groupwise.rewards.code.plain_values import (
    MAPPING_TAGS,
    MAX_DEPTH,
    MAX_TREE_BYTES,
    SEQUENCE_TAGS,
    SEQUENCES,
    BadTree,
    scalar,
)

MAX_KEY_ITEMS = 200
"""Largest frozenset that may be an element of a set or a key of a dict."""

_CONTAINER_TAGS = {*SEQUENCES, *MAPPING_TAGS.values()}


def read_tree(message: bytes) -> Any:
    """Parse a message from a hostile program; raise BadTree if it is too long, too deep or not JSON."""
    if len(message) > MAX_TREE_BYTES:
        raise BadTree(f"longer than {MAX_TREE_BYTES} bytes")
    try:
        return json.loads(message.decode("ascii"), parse_constant=_refuse, object_pairs_hook=_refuse)
    except RecursionError:
        raise BadTree("nested too deeply") from None
    except ValueError:  # not ASCII, not JSON, or an integer of thousands of digits
        raise BadTree("not JSON") from None


def _refuse(_found: Any) -> Any:
    raise ValueError("NaN, Infinity or an object")


def matches(tree: Any, expected: Any, *, lists_are_tuples: bool = False) -> bool:
    """Return whether the tree's value equals `expected`, which is made of Python literals.

    `lists_are_tuples` is for an expected value from JSON, which has no tuples: a list then also matches a tuple.
    """
    try:
        return _matches(tree, expected, lists_are_tuples)
    except BadTree:
        return False


def _matches(tree: Any, expected: Any, lists_are_tuples: bool) -> bool:
    kind = type(expected)
    if kind not in (list, tuple, set, frozenset, dict):
        return _is_leaf(tree) and _scalars_equal(scalar(tree), expected)
    if type(tree) is not list or len(tree) != 2 or type(tree[0]) is not str or type(tree[1]) is not list:
        return False
    tag, items = tree
    if len(items) != len(expected):
        return False
    if kind is list or kind is tuple:
        wanted_tags = ("list", "tuple") if lists_are_tuples else (SEQUENCE_TAGS[kind],)
        return tag in wanted_tags and all(
            _matches(item, wanted, lists_are_tuples) for item, wanted in zip(items, expected, strict=True)
        )
    if kind is dict:
        pairs = [item for item in items if type(item) is list and len(item) == 2]
        if tag not in MAPPING_TAGS.values() or len(pairs) != len(items):
            return False
        found, wanted = _positions([key for key, _ in pairs], expected), list(expected.values())
        return found is not None and all(
            _matches(value, wanted[place], lists_are_tuples) for (_, value), place in zip(pairs, found, strict=True)
        )
    return tag in ("set", "frozenset") and _positions(items, expected) is not None


def _positions(trees: list[Any], expected: Any) -> list[int] | None:
    """Return the position of each tree's value among the keys of `expected`; None unless each occurs exactly once."""
    # Only expected keys are in the table, so colliding hashes cannot slow it down.
    places = {key: place for place, key in enumerate(expected)}
    found = [places.get(_key(tree, 0), -1) for tree in trees]
    return found if sorted(found) == list(range(len(places))) else None


def _key(tree: Any, depth: int) -> Any:
    """Return the value of a tree that can be a key."""
    if _is_leaf(tree):
        value = scalar(tree)
        if type(value) is bytearray:
            raise BadTree("not a key")
        return value
    tag, items = tree if len(tree) == 2 else (None, None)
    if depth > MAX_DEPTH or tag not in ("tuple", "frozenset") or type(items) is not list:
        raise BadTree("not a key")
    if tag == "frozenset" and len(items) > MAX_KEY_ITEMS:
        raise BadTree("too many items in a key")
    return SEQUENCES[tag](_key(item, depth + 1) for item in items)


def _is_leaf(tree: Any) -> bool:
    return type(tree) is not list or not (len(tree) == 2 and type(tree[1]) is list)


def _scalars_equal(value: Any, expected: Any) -> bool:
    if type(value) in (bool, int, float, complex) and type(expected) in (bool, int, float, complex):
        return value == expected or (value != value and expected != expected)
    return bool(value == expected)


def truth(tree: Any) -> bool | None:
    """Return `bool(decode(tree))`; None for an invalid tree."""
    try:
        if _is_leaf(tree):
            return bool(scalar(tree))
    except BadTree:
        return None
    return len(tree[1]) > 0 if type(tree[0]) is str and tree[0] in _CONTAINER_TAGS else None
