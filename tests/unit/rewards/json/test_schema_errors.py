"""Partial credit of documents with many errors, or with errors deep in recursive schemas."""

import functools
import json
import time
from typing import Any

import pytest

from groupwise.rewards.json.score_json import compile_schema, score_document
from groupwise.types import Score, Verdict


def _judge(schema: Any, document: Any) -> Score:
    return score_document(json.dumps(schema), "", json.dumps(document, separators=(",", ":")), "v")


def _expressions(reference: str, **names: str) -> dict[str, Any]:
    operands = {"left": {"$ref": reference}, "right": {"$ref": reference}}
    nodes = [
        {"type": "object", "properties": {"op": {"const": op}, **operands}, "required": ["op", "left", "right"]}
        for op in "+-*/"
    ]
    expression = {**names, "anyOf": [*nodes, {"type": "number"}]}
    properties = {"value": {"$ref": reference}, "name": {"type": "string"}}
    return {
        "type": "object",
        "properties": properties,
        "required": ["value", "name"],
        "$defs": {"expression": expression},
    }


EXPRESSIONS = _expressions("#/$defs/expression")


def _tree(depth: int, leaf: Any) -> Any:
    return {"op": "/", "left": _tree(depth - 1, 1), "right": _tree(depth - 1, leaf)} if depth else leaf


@pytest.mark.parametrize("depth", [1, 3, 8, 9])
@pytest.mark.parametrize(
    "schema", [EXPRESSIONS, _expressions("#expression", **{"$anchor": "expression"})], ids=["path", "anchor"]
)
def test_one_bad_leaf_deep_in_a_recursive_schema(schema: dict[str, Any], depth: int) -> None:
    score = _judge(schema, {"value": _tree(depth, "x"), "name": "y"})
    assert (score.verdict, score.reward) == (Verdict.WRONG, 0.3)
    assert score.detail == "at value: value fits none of the alternatives, or too many"
    assert _judge(schema, {"value": _tree(depth, 2), "name": "y"}).verdict is Verdict.CORRECT
    assert _judge(schema, {"value": _tree(depth, 2), "name": 5}).reward == 0.3


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": "http://json-schema.org/draft-07/schema#", "items": {"oneOf": [{"type": "string"}, {"const": ""}]}},
        {"$schema": "http://json-schema.org/draft-04/schema#", "id": "http://a/", "items": {"anyOf": [{"enum": [1]}]}},
        {"$id": "http://a/b", "$defs": {"a/b~%": {"anyOf": [{"minimum": 3}]}}, "items": {"$ref": "#/$defs/a~1b~0%25"}},
        {"$dynamicAnchor": "n", "anyOf": [{"type": "array", "items": {"$dynamicRef": "#n"}}, {"type": "integer"}]},
        {"items": {"anyOf": [{"properties": {"a": True}}], "unevaluatedProperties": False}},
        {"items": {"propertyNames": {"maxLength": 1}, "dependentSchemas": {"a": {"required": ["b"]}}}},
        {"prefixItems": [{"if": {"type": "integer"}, "then": {"minimum": 3}}], "items": {"type": "string"}},
    ],
)
def test_errors_are_those_of_the_library(schema: dict[str, Any]) -> None:
    compiled = compile_schema(json.dumps(schema))
    for document in ([1, "", "a"], ["", 4], [{"a": 1, "bc": 2}, [[1.5]]], [3, "a"], [[["x"]]], 2.5):
        errors = compiled.lister.errors(document)
        assert errors is not None
        assert bool(errors) is not compiled.validator.is_valid(document)
        expected = [error.instance_path for error in compiled.validator.iter_errors(document)]
        assert [error.instance_path for error in errors] == expected


def test_schemas_whose_errors_cannot_be_counted_give_no_partial_credit() -> None:
    inner = {"$id": "http://a/b", "anyOf": [{"type": "string"}]}
    schema = {"type": "object", "properties": {"a": inner, "b": True}, "required": ["a", "b"]}
    assert _judge(schema, {"a": "", "b": 1}).verdict is Verdict.CORRECT
    assert _judge(schema, {"a": 1, "b": 1}).reward == 0.0


HOSTILE = {
    "tree": (EXPRESSIONS, {"value": _tree(9, "x")}),
    "chain": (
        {
            "$defs": {
                "n": {"properties": {"n": {"$ref": "#/$defs/n"}}, "allOf": [{"properties": {"n": {"$ref": "#"}}}]}
            },
            "allOf": [{"$ref": "#/$defs/n"}, {"type": "object"}],
        },
        functools.reduce(lambda inner, _: {"n": inner}, range(40), ["x" * 50_000]),
    ),
    "many errors of many kinds": ({"items": {"allOf": [{"type": "string"}] * 20}}, [1] * 20_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_documents(name: str) -> None:
    schema, document = HOSTILE[name]
    started = time.process_time()
    score = _judge(schema, document)
    assert (score.verdict, score.reward) == (Verdict.WRONG, 0.0)
    assert time.process_time() - started < 5.0
