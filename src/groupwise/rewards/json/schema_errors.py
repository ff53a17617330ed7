"""All errors of a JSON document, with bounded time and memory.

jsonschema-rs makes all errors before it returns the first. Each has a copy of the value it is about, and an error of
`anyOf` or `oneOf` has the errors of every branch: on a recursive schema they grow exponentially with the depth of the
document. So such a combination is one error here, whatever its branches say, and the errors are counted before they
are made. Whether a document is valid at all is not decided here: `is_valid` needs no errors and remembers what it has
seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs

from groupwise.rewards.json.schema_share import resolve

MAX_ERROR_UNITS = 20_000
"""Limit on the errors that a document could have. A unit is one failed keyword at one value, about 4 KB and 15 µs, or
the copy of `VALUES_PER_UNIT` values."""
VALUES_PER_UNIT = 50
CHARS_PER_VALUE = 64

_URI = "urn:groupwise:schema"


class ErrorLister:
    def __init__(self, schema: dict[str, Any], **options: Any) -> None:
        """`options`: those of `validator_for`."""
        self._schema, self._options = schema, options
        self._named = dict(_names_of(schema))
        self._has_inner_ids = any(part is not schema and not name.startswith("#") for name, part in self._named.items())
        keywords: dict[str, Any] = {"anyOf": self._combination, "oneOf": self._combination}
        self._validator: jsonschema_rs.Validator | None = None
        with contextlib.suppress(jsonschema_rs.ValidationError):
            self._validator = jsonschema_rs.validator_for(schema, keywords=keywords, **options)

    def errors(self, document: Any) -> list[jsonschema_rs.ValidationError] | None:
        """Return the errors of a document; None if there could be too many, or they cannot be found."""
        if self._validator is None or self._may_be_many(document):
            return None
        return list(self._validator.iter_errors(document))

    def _combination(self, _: Any, branches: list[Any], path: list[str | int]) -> _Combination:
        if self._has_inner_ids:
            raise ValueError("the path may begin at an `$id` within the schema")
        steps = (str(step).replace("~", "~0").replace("/", "~1").replace("%", "%25") for step in path)
        place = f"{_URI}#/{'/'.join(steps)}"
        schema: dict[str, Any] = {str(path[-1]): [{"$ref": f"{place}/{branch}"} for branch in range(len(branches))]}
        if "$schema" in self._schema:
            schema["$schema"] = self._schema["$schema"]
        registry = jsonschema_rs.Registry([(_URI, self._schema)])
        return _Combination(jsonschema_rs.validator_for(schema, registry=registry, **self._options))

    def _may_be_many(self, document: Any) -> bool:
        sizes: dict[int, int] = {}
        _measure(document, sizes)
        num_left = MAX_ERROR_UNITS
        todo: list[tuple[Any, Any]] = [(self._schema, document)]
        while todo:
            schema, value = todo.pop()
            num_keywords = 1
            if isinstance(schema, Mapping):
                num_keywords = len(schema) + len(schema.get("required", ()))
                todo += self._applied(schema, value)
            elif not isinstance(schema, bool):
                return True  # a reference that cannot be followed here
            num_left -= num_keywords * (1 + sizes[id(value)] // VALUES_PER_UNIT)
            if num_left < 0:
                return True
        return False

    def _applied(self, schema: Mapping[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
        """Yield what the schema applies to the value and its parts, combinations aside; sometimes more."""
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if keyword in schema:
                reference = schema[keyword]
                yield self._named.get(reference) or resolve(self._schema, reference), value
        for member in schema.get("allOf", ()):
            yield member, value
        for keyword in ("then", "else"):
            yield schema.get(keyword, True), value
        if isinstance(value, dict):
            properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
            for keyword in ("dependentSchemas", "dependencies"):
                for member in schema.get(keyword, {}).values():
                    yield member if isinstance(member, Mapping) else True, value
            for name, part in value.items():
                yield True, part  # `propertyNames`
                yield properties.get(name, schema.get("additionalProperties", True)), part
                for member in patterns.values():
                    yield member, part
        elif isinstance(value, list):
            items = schema.get("items", True)
            first = items if isinstance(items, list) else schema.get("prefixItems", [])
            rest = schema.get("additionalItems", True) if isinstance(items, list) else items
            for place, part in enumerate(value):
                yield first[place] if place < len(first) else rest, part


class _Combination:
    """`anyOf` or `oneOf` as a single error."""

    def __init__(self, validator: jsonschema_rs.Validator) -> None:
        self.validator = validator

    def validate(self, instance: Any) -> None:
        if not self.validator.is_valid(instance):
            raise ValueError("value fits none of the alternatives, or too many")


def _names_of(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names that references can use for parts of a schema, with the parts."""
    if isinstance(part, dict):
        for keyword, mark in (("$anchor", "#"), ("$dynamicAnchor", "#"), ("$id", ""), ("id", "")):
            if isinstance(part.get(keyword), str):
                yield mark + part[keyword], part
    for child in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _names_of(child)


def _measure(value: Any, sizes: dict[int, int]) -> int:
    """Return the number of values in a value, long strings counted as several; keep it for each part."""
    size = 1
    if isinstance(value, str):
        size += len(value) // CHARS_PER_VALUE
    elif isinstance(value, dict):
        size += sum(_measure(part, sizes) + len(name) // CHARS_PER_VALUE for name, part in value.items())
    elif isinstance(value, list):
        size += sum(_measure(part, sizes) for part in value)
    sizes[id(value)] = size
    return size
