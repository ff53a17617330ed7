"""An exact JSON encoding of plain values, exchanged between the model's program and its grader.

`encode` turns an object of exact built-in types (`type(x) is list`, never a subclass, whose methods could lie) and some
types of the standard library into a tree of JSON values; anything else raises `NotPlain`. A tree is null, true, false,
an integer below 2**53, a finite float, a string, or `[tag, …]`:

    ["int", "-ff"]  ["float", "nan"]  ["complex", re, im]  ["bytes", "00ff"]  ["list", [tree …]]  ["dict", [[k, v] …]]

`decode` is its inverse. Both run in a sandbox, and their cost depends on the value.

`read_tree`, `matches`, `truth`, `holds_nan` and `scalar` run in our process, on trees of a hostile program. They raise
only `BadTree`, never run a tree, take time linear in its length, and never put its elements into a hash table of more
than `MAX_KEY_ITEMS`, since integers with colliding hashes are easy to write.

The module needs only the standard library, since its source is sent into the sandbox.
"""

from __future__ import annotations

import collections
import decimal
import fractions
import json
import re
from typing import Any

MAX_DEPTH = 64
MAX_NODES = 400_000
MAX_TREE_BYTES = 4_000_000
MAX_KEY_ITEMS = 200
"""Largest frozenset that may be an element of a set or a key of a dict."""

_SAFE_INT = 2**53
_FRACTION_BOUND = 2**8192  # a common divisor takes time quadratic in the digits
# Patterns are compiled on first use: most programs need none, and each takes part of a millisecond.
_HEX_INT = r"-?[0-9a-f]+"
_HEX_BYTES = r"(?:[0-9a-f]{2})*"
_DECIMAL = r"-?(?:[0-9]{1,10000}(?:\.[0-9]{1,10000})?(?:E[+-]?[0-9]{1,6})?|Infinity|NaN)"
_FLOATS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
SEQUENCES: dict[str, Any] = {kind.__name__: kind for kind in (list, tuple, set, frozenset, collections.deque)}
SEQUENCE_TAGS: dict[type, str] = {kind: tag for tag, kind in SEQUENCES.items()}
MAPPING_TAGS: dict[type, str] = {
    dict: "dict",
    collections.Counter: "counter",
    collections.OrderedDict: "ordered",
    collections.defaultdict: "default",
}


class NotPlain(Exception):
    """The value is not plain data, or too large; the message says which."""


class BadTree(Exception):
    """The tree is not one that `encode` produces."""


def encode(value: Any) -> Any:
    """Return the tree of a plain value; raise NotPlain for any other."""
    return _Encoder().tree(value, 0)


class _Encoder:
    def __init__(self) -> None:
        self.num_nodes = 0
        self.size = 0

    def add_size(self, num_characters: int) -> None:
        self.size += num_characters
        if self.size > MAX_TREE_BYTES:
            raise NotPlain(f"more than {MAX_TREE_BYTES} characters")

    def tree(self, value: Any, depth: int) -> Any:
        kind = type(value)
        self.num_nodes += 1
        if self.num_nodes > MAX_NODES:
            raise NotPlain(f"more than {MAX_NODES} values")
        if depth > MAX_DEPTH:
            raise NotPlain(f"nested deeper than {MAX_DEPTH}, or within itself")
        if value is None or kind is bool:
            return value
        if kind is str:
            self.add_size(len(value))
            return value
        if kind is int:
            self.add_size(value.bit_length() // 4)
            return value if -_SAFE_INT < value < _SAFE_INT else ["int", f"{value:x}"]
        if kind is float:
            return value if value - value == 0.0 else ["float", repr(value)]
        if kind in SEQUENCE_TAGS:
            return [SEQUENCE_TAGS[kind], [self.tree(item, depth + 1) for item in value]]
        if kind in MAPPING_TAGS:
            pairs = [[self.tree(key, depth + 1), self.tree(item, depth + 1)] for key, item in value.items()]
            return [MAPPING_TAGS[kind], pairs]
        return self.rare_tree(value, kind)

    def rare_tree(self, value: Any, kind: type) -> Any:
        if kind is complex:
            return ["complex", self.tree(value.real, 0), self.tree(value.imag, 0)]
        if kind is bytes or kind is bytearray:
            self.add_size(2 * len(value))
            return [kind.__name__, value.hex()]
        if kind is range:
            return ["range", *(self.tree(bound, 0) for bound in (value.start, value.stop, value.step))]
        if kind is fractions.Fraction:
            if max(abs(value.numerator), value.denominator) >= _FRACTION_BOUND:
                raise NotPlain("a Fraction with too many digits")
            return ["fraction", self.tree(value.numerator, 0), self.tree(value.denominator, 0)]
        if kind is decimal.Decimal:
            text = str(value).replace("sNaN", "NaN")
            if re.fullmatch(_DECIMAL, text) is None:
                raise NotPlain("a Decimal with too many digits")
            return ["decimal", text]
        raise NotPlain(f"{kind.__name__} is not plain data")


def decode(tree: Any, depth: int = 0) -> Any:
    """Return the value of a tree; raise BadTree for what `encode` does not produce."""
    if depth > MAX_DEPTH + 1:
        raise BadTree("nested too deeply")
    if type(tree) is not list:
        return scalar(tree)
    if len(tree) == 2 and type(tree[0]) is str and type(tree[1]) is list:
        tag, items = tree
        try:
            if tag in SEQUENCES:
                return SEQUENCES[tag](decode(item, depth + 1) for item in items)
            mapping = {decode(key, depth + 1): decode(item, depth + 1) for key, item in items}
        except (TypeError, ValueError):  # a list in a set or as a key; a malformed pair
            raise BadTree(f"{tag}: bad items") from None
        kind = next((kind for kind, each in MAPPING_TAGS.items() if each == tag), None)
        if kind is None:
            raise BadTree("unknown tag")
        return collections.defaultdict(None, mapping) if kind is collections.defaultdict else kind(mapping)
    return scalar(tree)


def scalar(tree: Any) -> Any:
    """Return the value of a tree without items; raise BadTree for any other."""
    if type(tree) is not list:
        if tree is None or type(tree) in (bool, int, float, str):
            return tree
        raise BadTree("not a value")
    if not all(type(part) in (str, int, float) or type(part) is list for part in tree):
        raise BadTree("not a value")
    match tree:
        case ["int", str(text)] if re.fullmatch(_HEX_INT, text):
            return int(text, 16)
        case ["float", str(text)] if text in _FLOATS:
            return _FLOATS[text]
        case ["bytes" | "bytearray" as tag, str(text)] if re.fullmatch(_HEX_BYTES, text):
            return bytes.fromhex(text) if tag == "bytes" else bytearray.fromhex(text)
        case ["decimal", str(text)] if re.fullmatch(_DECIMAL, text):
            return decimal.Decimal(text)
        case ["complex", real, imag]:
            return complex(_number(real, float), _number(imag, float))
        case ["fraction", numerator, denominator]:
            numbers = _number(numerator, int), _number(denominator, int)
            if max(abs(numbers[0]), numbers[1]) < _FRACTION_BOUND and numbers[1] > 0:
                return fractions.Fraction(*numbers)
        case ["range", start, stop, step]:
            return range(_number(start, int), _number(stop, int), _number(step, int) or 1)
    raise BadTree("not a value")


def _number(tree: Any, kind: type) -> Any:
    if type(tree) is list and not (len(tree) == 2 and tree[0] in ("int", "float")):
        raise BadTree("expected a number")
    value = scalar(tree)
    if type(value) is not kind:
        raise BadTree("expected a number")
    return value


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

    Agrees with `decode(tree) == expected` in Python, except that NaN equals NaN; of an expected set or dict, each key
    must occur exactly once. `lists_are_tuples` is for an expected value from JSON, which has no tuples: a list then
    also matches a tuple.
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


def holds_nan(tree: Any) -> bool:
    """Return whether the tree's value is NaN or has one within; raise BadTree for an invalid tree."""
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        if not _is_leaf(each):
            tag, items = each
            waiting += items if tag not in MAPPING_TAGS.values() else [part for pair in items for part in _pair(pair)]
        elif (value := scalar(each)) != value:
            return True
    return False


def _pair(tree: Any) -> list[Any]:
    if type(tree) is not list or len(tree) != 2:
        raise BadTree("not a pair")
    return tree


def truth(tree: Any) -> bool | None:
    """Return `bool(decode(tree))`; None for an invalid tree."""
    try:
        if _is_leaf(tree):
            return bool(scalar(tree))
    except BadTree:
        return None
    return len(tree[1]) > 0 if type(tree[0]) is str and tree[0] in (*SEQUENCES, *MAPPING_TAGS.values()) else None
