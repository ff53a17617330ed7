"""Where the document is, how strictly it is read, what validates, and what a part of it is worth."""

import copy
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.rewards.json.schema_share import LEAF, MAX_OUTLINE_NODES, outline_of
from groupwise.rewards.json.score_json import (
    MAX_DEPTH,
    MAX_JSON_CHARS,
    NotJsonError,
    SchemaError,
    compile_schema,
    find_json,
    is_same_json,
    last_brackets,
    parse_json,
    score_document,
    score_json,
)
from groupwise.types import Score, Verdict

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "home": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "town": {"type": "string"}},
            "required": ["street", "town"],
            "additionalProperties": False,
        },
        "nick": {"type": "string"},
    },
    "required": ["name", "age", "home"],
    "additionalProperties": False,
}
ADA: dict[str, Any] = {"name": "Ada", "age": 36, "home": {"street": "St James", "town": "London"}}


def judge(schema: Any, document: Any, answer: str = "") -> Score:
    return score_document(json.dumps(schema), answer, json.dumps(document), "json-schema/1")


def share(schema: Any, document: Any) -> float:
    found = judge(schema, document)
    assert found.verdict is (Verdict.CORRECT if found.reward == 1.0 else Verdict.WRONG)
    assert found.reward == sum(found.parts.values())
    return found.parts["correct"] or found.parts["paths"] / 0.6


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ('```json\n{"a": 1}\n```', '{"a": 1}'),
        ('```json\n1\n```\n```python\n{"a": 2}\n```', "1"),
        ("```\n[1]\n```", "[1]"),
        ("<answer>[2]</answer>", "[2]"),
        ("<answer>[2]</answer>\n```json\n[3]\n```", "[3]"),
        ('{"a": {"b": [1, 2]}}', '{"a": {"b": [1, 2]}}'),
        ('It is {"a": "}"}, as I "said.', '{"a": "}"}'),
        ('It is 5" wide: {"a": "\\"}"} ok', '{"a": "\\"}"}'),
        ("first [1] then [2]", "[2]"),
        ("[1] then [2", "[1]"),
        ('{"a": {"b": 1}, "c": ', None),
        ("[1} {2] [3]", "[3]"),
        ("[{}} [3", None),
        ("[{}}", None),
        ("}{", None),
        ("no document", None),
        ("```json\n \n```", None),
        ("", None),
    ],
)
def test_find_json(completion: str, expected: str | None) -> None:
    found = find_json(completion)
    assert (None if found is None else found.strip()) == expected


def _last_brackets_slowly(text: str) -> str | None:
    """Quadratic and obvious: whatever can be read from the first bracket on, then from the next after it."""
    found, position = None, 0
    while position < len(text):
        if text[position] in "{[":
            try:
                _, length = json.JSONDecoder().raw_decode(text[position:])
            except json.JSONDecodeError:
                return found
            found = text[position : position + length]
            position += length
        else:
            position += 1
    return found


WORDS = st.text("ab ,:", max_size=4)
DOCUMENTS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text('a"{}[]\\\n', max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("k{]", max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.lists(st.tuples(WORDS, DOCUMENTS), max_size=3), WORDS)
def test_last_brackets_agrees_with_the_slow_one(parts: list[tuple[str, Any]], end: str) -> None:
    documents = [(word, value) for word, value in parts if isinstance(value, (list, dict))]
    text = "".join(f"{word}{json.dumps(value)}" for word, value in documents) + end
    assert last_brackets(text) == _last_brackets_slowly(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "a": 1}', "repeated"),
        ('[{"b": {"a": 1, "\\u0061": 2}}]', "repeated"),
        ("NaN", "NaN is not JSON"),
        ("[Infinity]", "Infinity is not JSON"),
        ("-Infinity", "-Infinity is not JSON"),
        ("1e999", "too large"),
        ("-1e999", "too large"),
        ("9" * 65, "more than 64"),
        ("0." + "3" * 65, "more than 64"),
        ("9" * 5000, "more than 64"),
        ('"\\ud800"', "surrogate"),
        ('{"\\udc00": 1}', "surrogate"),
        ('"\ud800"', "surrogate"),
        ("{'a': 1}", "property name"),
        ('{"a": 1,}', "property name"),
        ('{"a": 1} more', "Extra data"),
        ('// comment\n{"a": 1}', "Expecting value"),
        ('"a\nb"', "control character"),
        ('"\x00"', "control character"),
        ("\ufeff{}", "Expecting value"),
        ("01", "Extra data"),
        ("", "Expecting value"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nested"),
        ("[" * 60_000, "nested"),
        ('{"a":' * 10_000, "nested"),
        ('"' + "x" * MAX_JSON_CHARS + '"', "longer than"),
    ],
)
def test_what_is_not_json_to_us(text: str, reason: str) -> None:
    started = time.process_time()
    with pytest.raises(NotJsonError, match=reason):
        parse_json(text)
    score = score_document("{}", "", text, "v")
    assert (score.verdict, score.reward) == (Verdict.UNPARSED, 0.0)
    assert len(score.detail) < 200
    assert time.process_time() - started < 10.0


def test_what_is_json_to_us() -> None:
    assert parse_json(' {"a": [1, 2.5, -0, 1e3, "\\ud83d\\ude00é", null, true]} \n') == {
        "a": [1, 2.5, 0, 1000.0, "😀é", None, True]
    }
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert json.dumps(parse_json(deep)) == deep
    brackets = json.dumps(["[" * 200, "{" * 200, '"[\\' * 100])
    assert parse_json(brackets) == json.loads(brackets)
    assert len(parse_json(json.dumps([[]] * 1000))) == 1000


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (None, False, False),
        ("1", 1, False),
        ([1, 2], [2, 1], False),
        ([1], [1, 1], False),
        ({"a": 1, "b": [True]}, {"b": [True], "a": 1.0}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ([], {}, False),
        (2**60, float(2**60) + 256, False),
    ],
)
def test_is_same_json(one: Any, other: Any, is_same: bool) -> None:
    assert is_same_json(one, other) is is_same
    assert is_same_json(other, one) is is_same


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (ADA, 1.0),
        ({**ADA, "nick": "A"}, 1.0),
        ({**ADA, "nick": 5}, 4 / 5),
        ({**ADA, "junk": 5}, 4 / 5),
        ({**ADA, "junk": 5, "more": [1]}, 4 / 6),
        ({**ADA, "age": "36"}, 3 / 4),
        ({**ADA, "age": -1}, 3 / 4),
        ({"name": "Ada", "age": 36}, 2 / 4),
        ({**ADA, "home": "London"}, 2 / 4),
        ({**ADA, "home": {"town": "London"}}, 3 / 4),
        ({**ADA, "home": {"street": "St James", "town": "London", "zip": 1}}, (2 + 2 * 2 / 3) / 4),
        ({"home": {}}, 0.0),
        ({}, 0.0),
        ([], 0.0),
        ("Ada", 0.0),
        (None, 0.0),
        ([ADA], 0.0),
    ],
)
def test_partial_credit(document: Any, expected: float) -> None:
    assert share(PERSON, document) == pytest.approx(expected)


def test_errors_of_the_object_itself_cost() -> None:
    schema = {"type": "object", "required": ["a"], "maxProperties": 1, "propertyNames": {"maxLength": 2}}
    assert share(schema, {"a": 1, "b": 2}) == 1 / 2
    assert share(schema, {"a": 1, "long": 2}) == 1 / 3
    assert judge(PERSON, {**ADA, "age": "36"}).detail == 'at age: value is not of type "integer"'


def test_more_errors_than_can_be_counted() -> None:
    schema = {"type": "object", "required": ["a"], "additionalProperties": {"type": "string"}}
    assert share(schema, {"a": "", **{str(number): 0 for number in range(1000)}}) == pytest.approx(1 / 1001)
    assert share(schema, {"a": "", **{str(number): 0 for number in range(1001)}}) == 0.0


def test_partial_credit_of_arrays_is_that_of_the_worst_item() -> None:
    item = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    }
    people = {"type": "array", "items": item, "minItems": 2}
    good, half, bad = {"a": 1, "b": 2}, {"a": 1}, {"c": 1}
    assert share(people, [good, good]) == 1.0
    assert share(people, [good, half]) == share(people, [half, *[good] * 20]) == 0.5
    assert share(people, [good, half, bad]) == 0.0
    assert share(people, [good]) == pytest.approx(2 / 3)
    assert share(people, []) == 0.0
    assert share({"type": "array", "items": {"type": "integer"}}, [1, "2"]) == 0.0


def test_what_is_required_behind_references() -> None:
    person = copy.deepcopy(PERSON)
    home = person["properties"].pop("home")
    person["properties"]["home"] = {"$ref": "#/$defs/a~1b"}
    person["$defs"] = {"a/b": home}
    assert outline_of(person, ignores_beside_ref=False) == outline_of(PERSON, ignores_beside_ref=False)
    assert outline_of({"allOf": [person]}, ignores_beside_ref=False).num_leaves == 3  # the reference is lost in there
    both = {"allOf": [{"type": "object", "required": ["a"]}, {"required": ["b"]}], "required": ["a"]}
    assert set(outline_of(both, ignores_beside_ref=False).properties) == {"a", "b"}
    beside = {"type": "object", "required": ["x"], "$ref": "#/$defs/y", "$defs": {"y": both}}
    assert set(outline_of(beside, ignores_beside_ref=False).properties) == {"a", "b", "x"}
    assert set(outline_of(beside, ignores_beside_ref=True).properties) == {"a", "b"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["object", "null"], "required": ["a"]},
        {"required": ["a"]},
        {"type": "object"},
        {"type": "object", "properties": {"a": {"type": "object", "required": ["b"]}}},
        {"anyOf": [{"type": "object", "required": ["a"]}]},
        {"type": "array", "prefixItems": [{}], "items": {"type": "object", "required": ["a"]}},
        {"$ref": "#"},
        {"$ref": "#/nowhere/at/all"},
        {"$ref": "other.json"},
        {"$ref": "#a", "$defs": {"b": {"$anchor": "a"}}, "type": "object", "required": ["c"]},
    ],
)
def test_what_is_not_required_for_sure_is_a_leaf(schema: dict[str, Any]) -> None:
    assert outline_of(schema, ignores_beside_ref=False) == LEAF


def test_schemas_that_require_without_end() -> None:
    node = {"type": "object", "properties": {"l": {"$ref": "#"}, "r": {"$ref": "#"}}, "required": ["l", "r"]}
    assert outline_of(node, ignores_beside_ref=False).num_leaves == 4
    levels: dict[str, Any] = {"l40": {"type": "string"}}
    for level in range(40):
        next_level = {"$ref": f"#/$defs/l{level + 1}"}
        pair = {"type": "object", "properties": {"a": next_level, "b": next_level}, "required": ["a", "b"]}
        levels[f"l{level}"] = pair
    outline = outline_of({"$ref": "#/$defs/l0", "$defs": levels}, ignores_beside_ref=False)
    assert outline.num_leaves <= MAX_OUTLINE_NODES


JUNK = st.sampled_from([None, 5, -1, "x", [], {}, {"street": 1}])
PATHS = [(), ("name",), ("age",), ("home",), ("nick",), ("home", "street"), ("home", "town")]


def _is_valid(document: Any, path: tuple[str, ...]) -> bool:
    """Whether no error is at this path or below: the document with all else made right is valid."""
    whole = {**ADA, "nick": "A", "home": dict(ADA["home"])}
    if not path:
        return share(PERSON, document) == 1.0
    place, source = whole, document
    for step in path[:-1]:
        if not isinstance(source, dict) or step not in source:
            return False
        place, source = place[step], source[step]
    if not isinstance(source, dict) or path[-1] not in source:
        return False
    place[path[-1]] = source[path[-1]]
    return share(PERSON, whole) == 1.0


def _changed(document: Any, path: tuple[str, ...], value: Any) -> Any:
    if not path:
        return value
    if not isinstance(document, dict) or path[0] not in document:
        return document
    if len(path) == 1 and value == "remove":
        return {name: child for name, child in document.items() if name != path[0]}
    return {**document, path[0]: _changed(document[path[0]], path[1:], value)}


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from(PATHS), JUNK), max_size=4),
    st.sampled_from(PATHS[1:]),
    st.one_of(JUNK, st.just("remove")),
    st.booleans(),
)
def test_breaking_a_path_never_raises_the_share(
    changes: list[tuple[tuple[str, ...], Any]], path: tuple[str, ...], value: Any, has_junk: bool
) -> None:
    document: Any = {**ADA, "nick": "A"}
    for place, junk in changes:
        document = _changed(document, place, junk)
    broken = _changed(document, path, value)
    if path == ("nick",) and value == "remove":
        return  # what is optional may be left out
    if not _is_valid(broken, path):
        assert share(PERSON, broken) <= share(PERSON, document)
    if has_junk and isinstance(document, dict) and document:
        assert share(PERSON, {**document, "junk": 1}) <= share(PERSON, document)
        assert share(PERSON, {**document, "junk": 1}) < 1.0


def test_an_answer_must_be_met() -> None:
    answer = json.dumps(ADA)
    assert judge(PERSON, dict(reversed(ADA.items())), answer).verdict is Verdict.CORRECT
    assert judge(PERSON, {**ADA, "age": 36.0}, answer).verdict is Verdict.CORRECT
    other = judge(PERSON, {**ADA, "age": 37}, answer)
    assert (other.verdict, other.reward, other.parts) == (Verdict.WRONG, 0.6, {"correct": 0.0, "paths": 0.6})
    assert judge(PERSON, {**ADA, "age": "37"}, answer).reward == pytest.approx(0.6 * 3 / 4)
    null = score_json("{}", "null", "```json\nnull\n```", "v")
    assert null.verdict is Verdict.CORRECT
    assert score_json("{}", "null", "```json\nfalse\n```", "v").verdict is Verdict.WRONG


def test_completions() -> None:
    schema, document = json.dumps(PERSON), json.dumps(ADA)
    for completion in (document, f"So:\n```json\n{document}\n```\nDone.", f"<answer>{document}</answer>"):
        score = score_json(schema, "", completion, "json-schema/1")
        assert (score.verdict, score.reward, score.verifier) == (Verdict.CORRECT, 1.0, "json-schema/1")
    wrong = score_json(schema, "", "```json\n{}\n```", "v")
    assert (wrong.verdict, wrong.reward) == (Verdict.WRONG, 0.0)
    assert "required" in wrong.detail
    assert score_json(schema, "", "I would rather not.", "v").detail == "no JSON found"
    assert score_json(schema, "", document, "v", paths_reward=0.0).reward == 1.0
    assert score_json(schema, "", "[]", "v", paths_reward=0.0).reward == 0.0


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("[]", "expected an object"),
        ("true", "expected an object"),
        ("{", "not JSON"),
        ('{"type": "objekt"}', "not a valid schema at type"),
        ('{"required": "a"}', "not a valid schema at required"),
        ('{"properties": {"a": {"minimum": "x"}}}', "not a valid schema at properties/a/minimum"),
        ('{"pattern": "(?=a)b"}', "pattern at pattern is not a linear-time regular expression"),
        ('{"pattern": "(a)\\\\1"}', "linear-time"),
        ('{"pattern": "("}', "linear-time"),
        ('{"patternProperties": {"(?<=a)b": {}}}', "linear-time"),
        ('{"pattern": "((a{1000}){1000}){1000}"}', "linear-time"),
        ('{"$schema": "http://example.com/my-draft"}', "my-draft"),
        ('{"$ref": "#/$defs/missing"}', "missing"),
        ('{"a": 1, "a": 2}', "repeated"),
    ],
)
def test_schemas_that_cannot_be_used(schema: str, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        compile_schema(schema)


def test_nothing_is_fetched(tmp_path: Path) -> None:
    file = tmp_path / "integer.json"
    file.write_text('{"type": "integer", "$schema": "https://json-schema.org/draft/2020-12/schema"}')
    os.mkfifo(tmp_path / "pipe.json")  # whoever opened it would wait for ever
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        base = f"http://127.0.0.1:{server.getsockname()[1]}"
        for schema in (
            {"$ref": f"{base}/a.json"},
            {"$ref": file.as_uri()},
            {"$ref": (tmp_path / "pipe.json").as_uri()},
            {"$ref": str(file)},
            {"$ref": "integer.json"},
            {"$id": f"{base}/schema", "$ref": "a.json"},
            {"$id": f"{tmp_path.as_uri()}/", "$ref": "integer.json"},
            {"$id": f"{tmp_path.as_uri()}/", "properties": {"a": {"$ref": "pipe.json#/x"}}},
            {"$schema": file.as_uri()},
            {"$schema": f"{base}/draft"},
            {"$dynamicRef": f"{base}/a.json#x"},
            {"properties": {"a": {"items": {"$ref": f"{base}/a.json"}}}},
            {"$schema": "http://json-schema.org/draft-07/schema#", "$id": f"{base}/s", "$ref": "x.json"},
            {"$schema": "http://json-schema.org/draft-04/schema#", "id": f"{base}/s", "items": {"$ref": "x.json"}},
        ):
            with pytest.raises(SchemaError):
                compile_schema(json.dumps(schema))
        harmless = {"$id": f"{base}/s", "enum": [{"$ref": f"{base}/b.json"}], "examples": [{"$ref": file.as_uri()}]}
        assert judge(harmless, {"$ref": f"{base}/b.json"}).verdict is Verdict.CORRECT
        with pytest.raises(BlockingIOError):
            server.accept()


HOSTILE = {
    "backtracking": ({"pattern": "^(a+)+$"}, "a" * 60_000 + "b"),
    "backtracking key": ({"patternProperties": {"^(a|aa)+$": False}}, {"a" * 60_000 + "b": 1, "aa": 1}),
    "a regex of the model": ({"format": "regex"}, "(((a{1000}){1000}){1000}){1000}" + "(" * 50_000),
    "many errors": ({"items": {"type": "string"}}, list(range(9_000))),
    "many junk keys": ({"additionalProperties": False}, {str(number): 0 for number in range(6_000)}),
    "unique": ({"uniqueItems": True, "maxItems": 1}, [[number] for number in range(7_000)]),
    "email": ({"format": "email"}, "a." * 30_000 + "@"),
    "hostname": ({"format": "idn-hostname"}, "xn--" + "a" * 60_000),
    "template": ({"format": "uri-template"}, "{" * 60_000),
    "deep": ({"$ref": "#/$defs/n", "$defs": {"n": {"items": {"$ref": "#/$defs/n"}, "maxItems": 0}}}, [[[[[[]]]]]]),
    "itself": ({"allOf": [{"$ref": "#"}], "type": "string"}, 5),
    "large integer": ({"maximum": 5}, 10**60),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_documents(name: str) -> None:
    schema, document = HOSTILE[name]
    started = time.process_time()
    score = judge(schema, document)
    assert score.verdict is Verdict.WRONG
    assert 0.0 <= score.reward < 0.6
    assert len(score.detail) < 200
    score.detail.encode()
    assert time.process_time() - started < 10.0


@pytest.mark.parametrize(
    "unit", ["{", "}", "[", '"', '\\"', '{"', "[]", '{"a":', "\n", "```json\n{", "<answer>{", "\ud800", "\0"]
)
def test_hostile_completions(unit: str) -> None:
    started = time.process_time()
    score = score_json('{"type": "object", "required": ["a"]}', "", unit * (100_000 // len(unit)), "v")
    assert time.process_time() - started < 10.0
    assert (score.verdict is not Verdict.CORRECT, score.reward) == (True, 0.0)
    score.detail.encode()


def test_formats_are_checked_in_every_draft() -> None:
    for draft in ("https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"):
        schema = {"$schema": draft, "format": "date"}
        assert judge(schema, "2020-02-29").verdict is Verdict.CORRECT
        assert judge(schema, "2020-02-30").verdict is Verdict.WRONG
    assert judge({"format": "of our own"}, "x").verdict is Verdict.CORRECT
