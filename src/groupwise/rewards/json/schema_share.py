"""Partial credit for a JSON document: the share of what its schema requires that is present and valid.

The *outline* of a schema is the tree of what every valid document must have: an object (`type: object`) branches into
its `required` properties, an array (`type: array`) whose items branch has one branch for all items, and everything else
is a leaf. `allOf` and local `$ref`s are followed; other combinations are leaves, since they require nothing for sure.
The weight of a branch is the number of its leaves.

The share of a document is that of its root:

    leaf     1 if it is present without an error at or below it, else 0
    object   Σ over required properties of weight × share, divided by (weight + extra): `extra` counts the errors of the
             object itself and the optional or forbidden properties with an error at or below them. 0 for other types
    array    its worst item's share × weight, divided by (weight + errors of the array itself). 0 if empty or no array

Without extra errors it is the share of required leaf paths that are present and valid. Absent optional properties are
worth nothing, more items do not compensate for a bad one, and an invalid document has a share below 1. Breaking a path
never raises the share, unless it disables a condition (`if`, `oneOf`, `dependentRequired`, `not`) that was in error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from jsonschema_rs import ValidationError, ValidationErrorKind

MAX_OUTLINE_NODES = 2_000
"""Size limit of an outline: a schema can require exponentially many paths."""

Schemas = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class SchemaOutline:
    num_leaves: int = 1
    properties: Mapping[str, SchemaOutline] = field(default_factory=dict)
    """Required properties of an object."""
    items: SchemaOutline | None = None
    """Outline of every item of an array."""


LEAF = SchemaOutline()


def outline_of(schema: Mapping[str, Any], *, ignores_beside_ref: bool) -> SchemaOutline:
    """Return the outline; `ignores_beside_ref`: the draft (up to 7) ignores everything beside a `$ref`."""
    return _Outliner(schema, ignores_beside_ref).outline((schema,), frozenset())


class _Outliner:
    def __init__(self, root: Mapping[str, Any], ignores_beside_ref: bool) -> None:
        self.root, self.ignores_beside_ref = root, ignores_beside_ref
        self.num_left = MAX_OUTLINE_NODES

    def outline(self, schemas: Schemas, followed: frozenset[str]) -> SchemaOutline:
        """Outline a value that satisfies all `schemas`. `followed`: references so far, to detect loops."""
        self.num_left -= 1
        flat, followed = self._flatten(schemas, followed)
        if self.num_left <= 0 or flat is None:
            return LEAF
        types = {schema["type"] for schema in flat if isinstance(schema.get("type"), str)}
        if "object" in types:
            required = {name: None for schema in flat for name in _names(schema.get("required"))}
            properties = {name: self.outline(_members(flat, name), followed) for name in required}
            if properties:
                return SchemaOutline(sum(child.num_leaves for child in properties.values()), properties)
        elif "array" in types and not any("prefixItems" in schema for schema in flat):
            items = tuple(schema["items"] for schema in flat if isinstance(schema.get("items"), Mapping))
            outline = self.outline(items, followed)
            if outline is not LEAF:
                return SchemaOutline(outline.num_leaves, items=outline)
        return LEAF

    def _flatten(self, schemas: Schemas, followed: frozenset[str]) -> tuple[Schemas | None, frozenset[str]]:
        """Resolve references; None for a reference that loops or leads outside the schema."""
        flat: list[Mapping[str, Any]] = []
        todo = list(schemas)
        while todo:
            schema = todo.pop()
            reference = schema.get("$ref")
            if reference is not None:
                target = None if reference in followed else resolve(self.root, reference)
                if target is None:
                    return None, followed
                followed = followed | {reference}
                todo.append(target)
            if reference is None or not self.ignores_beside_ref:
                flat.append(schema)
                members = schema.get("allOf")
                todo += [member for member in members or () if isinstance(member, Mapping)]
        return tuple(flat), followed


def resolve(schema: Mapping[str, Any], reference: Any) -> Mapping[str, Any] | None:
    """Return the target of `#/…` in a schema; None for anything else (anchors, other documents)."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    found: Any = schema
    for step in unquote(reference[1:]).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else None


def _names(required: Any) -> list[str]:
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


def _members(schemas: Schemas, name: str) -> Schemas:
    tables = (schema.get("properties") for schema in schemas)
    found = (table.get(name) for table in tables if isinstance(table, Mapping))
    return tuple(member for member in found if isinstance(member, Mapping))


@dataclass(slots=True)
class _Errors:
    """Errors at one path of a document, and below it."""

    num_own: int = 0
    below: dict[str | int, _Errors] = field(default_factory=dict)

    def at(self, path: Iterable[str | int]) -> _Errors:
        found = self
        for step in path:
            found = found.below.setdefault(step, _Errors())
        return found


def share(outline: SchemaOutline, document: Any, errors: Iterable[ValidationError]) -> float:
    """Return the share, from 0 to below 1, of a document with errors."""
    root = _Errors()
    for error in errors:
        place = root.at(error.instance_path)
        kind = error.kind
        if isinstance(kind, ValidationErrorKind.Required):
            place.at((kind.property,)).num_own += 1
        elif isinstance(kind, (ValidationErrorKind.AdditionalProperties, ValidationErrorKind.UnevaluatedProperties)):
            for name in kind.unexpected:
                place.at((name,)).num_own += 1
        else:
            place.num_own += 1
    return _share(outline, document, root)


def _share(outline: SchemaOutline, value: Any, errors: _Errors | None) -> float:
    if errors is None:
        return 1.0
    if outline.properties:
        if not isinstance(value, dict):
            return 0.0
        kept = sum(
            child.num_leaves * _share(child, value[name], errors.below.get(name))
            for name, child in outline.properties.items()
            if name in value
        )
        num_extra = errors.num_own + sum(name not in outline.properties for name in errors.below)
        return kept / (outline.num_leaves + num_extra)
    if outline.items is not None:
        if not isinstance(value, list) or not value:
            return 0.0
        items = outline.items
        shares = [_share(items, value[place], below) for place, below in errors.below.items() if isinstance(place, int)]
        worst = min(shares, default=1.0)
        return worst * outline.num_leaves / (outline.num_leaves + errors.num_own)
    return 0.0
