"""All errors of a JSON document, in bounded time and memory.

jsonschema-rs makes all errors before it returns the first, each with a copy of its value, and an error of `anyOf` or
`oneOf` has the errors of every branch: on a recursive schema they grow exponentially with the depth of the document. So
such a combination is one error here, whatever its branches say, and errors are counted before they are made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import jsonschema_rs

from groupwise.rewards.json.schema_share import resolve

MAX_ERROR_UNITS = 40_000
CHARS_PER_UNIT = 200
"""A unit is one failed keyword at one value of this length, up to 4 KB and 15 µs; longer values are several units."""


class ErrorLister:
    def __init__(self, schema: dict[str, Any], **options: Any) -> None:
        """`options`: those of `validator_for`."""
        self._schema, self._options = schema, options
        self._named = dict(_names_of(schema))
        keywords: dict[str, Any] = {"anyOf": self._combination, "oneOf": self._combination}
        self._validator: jsonschema_rs.Validator | None = None
        with contextlib.suppress(jsonschema_rs.ValidationError):
            self._validator = jsonschema_rs.validator_for(schema, keywords=keywords, **options)

    def errors(self, document: Any) -> list[jsonschema_rs.ValidationError] | None:
        """Return the errors of a document; None if there could be too many, or they cannot be found."""
        if self._validator is None or self._may_be_many(document):
            return None
        return list(self._validator.iter_errors(document))

    def _combination(self, _: Any, branches: list[Any], path: list[str | int]) -> SimpleNamespace:
        if any(part is not self._schema and not name.startswith("#") for name, part in self._named.items()):
            raise ValueError("the path may begin at an `$id` within the schema")
        steps = (str(step).replace("~", "~0").replace("/", "~1").replace("%", "%25") for step in path)
        uri, place = "urn:groupwise:schema", "/".join(steps)
        schema: dict[str, Any] = {
            str(path[-1]): [{"$ref": f"{uri}#/{place}/{branch}"} for branch in range(len(branches))]
        }
        if "$schema" in self._schema:
            schema["$schema"] = self._schema["$schema"]
        registry = jsonschema_rs.Registry([(uri, self._schema)])
        validator = jsonschema_rs.validator_for(schema, registry=registry, **self._options)

        def validate(instance: Any) -> None:
            if not validator.is_valid(instance):
                raise ValueError("value fits none of the alternatives, or too many")

        return SimpleNamespace(validate=validate)

    def _may_be_many(self, document: Any) -> bool:
        num_left = MAX_ERROR_UNITS
        todo: list[tuple[Any, Any]] = [(self._schema, document)]
        while todo and num_left >= 0:
            schema, value = todo.pop()
            if schema is None:
                return True  # a reference that cannot be followed here
            num_keywords = 1
            if isinstance(schema, Mapping):
                num_keywords = len(schema) + len(schema.get("required", ()))
                todo += self._applied(schema, value)
            num_left -= num_keywords * (1 + len(repr(value)) // CHARS_PER_UNIT)
        return num_left < 0

    def _applied(self, schema: Mapping[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
        """Yield what the schema applies to the value and its parts, combinations aside; sometimes more."""
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if keyword in schema:
                yield self._named.get(schema[keyword]) or resolve(self._schema, schema[keyword]), value
        members = [*schema.get("allOf", ()), schema.get("then"), schema.get("else")]
        members += [*schema.get("dependentSchemas", {}).values(), *schema.get("dependencies", {}).values()]
        yield from ((member, value) for member in members if isinstance(member, Mapping))
        if isinstance(value, dict):
            properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {}).values()
            for name, part in value.items():
                # True is for `propertyNames`.
                for member in (True, properties.get(name, schema.get("additionalProperties", True)), *patterns):
                    yield member, part
        elif isinstance(value, list):
            items = schema.get("items", True)
            first = items if isinstance(items, list) else schema.get("prefixItems", [])
            rest = schema.get("additionalItems", True) if isinstance(items, list) else items
            yield from zip([*first, *[rest] * len(value)], value, strict=False)


def _names_of(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names that references can use for parts of a schema, with the parts."""
    if isinstance(part, dict):
        for keyword, mark in (("$anchor", "#"), ("$dynamicAnchor", "#"), ("$id", ""), ("id", "")):
            if isinstance(part.get(keyword), str):
                yield mark + part[keyword], part
    for child in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _names_of(child)
