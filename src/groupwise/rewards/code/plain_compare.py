"""Compares what a hostile program has sent, as the trees of `plain_values`, with what a test expects.

These functions run in our process. They never raise on a tree, never run it, take time linear in its length, and never
put its elements into a hash table of more than `MAX_KEY_ITEMS`, since whole numbers whose hashes collide are easy to
write. `matches` says what `decode(tree) == expected` says in Python, but that NaN equals NaN; where the expected value
is a set or a dict, each of its keys must be met exactly once.
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
    """The JSON of a message from a hostile program; raises BadTree where it is too long, too deep or none."""
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
    """Whether the tree's value equals `expected`, which is made of literals: numbers, strings, lists, sets, dicts …

    `lists_are_tuples` is for an expected value from JSON, which has no tuples: a list then matches a tuple too.
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
    """Where each tree's value is among the keys of `expected`; None unless each key is met exactly once."""
    # Only expected keys are in the table, so that colliding hashes cannot make it slow.
    places = {key: place for place, key in enumerate(expected)}
    found = [places.get(_key(tree, 0), -1) for tree in trees]
    return found if sorted(found) == list(range(len(places))) else None


def _key(tree: Any, depth: int) -> Any:
    """The value of a tree that can be a key."""
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
    """What `bool(decode(tree))` says; None for a tree that is none."""
    try:
        if _is_leaf(tree):
            return bool(scalar(tree))
    except BadTree:
        return None
    return len(tree[1]) > 0 if type(tree[0]) is str and tree[0] in _CONTAINER_TAGS else None
