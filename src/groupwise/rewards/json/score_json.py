"""Scores of JSON: a document is right when it validates against the schema and, if there is an answer, equals it.

Documents are found and parsed here in linear time, more strictly than by `json`; jsonschema-rs validates them.
References are never fetched from the network or from a file. Patterns run on a linear-time engine, so a schema whose
patterns use look-around or back-references is refused. Formats (`date`, `email` …) are checked in every draft; unknown
ones are ignored.

Reward: `correct` 1.0; or `paths`, by default 0.6 × the share of the schema's required paths that are present and valid,
as `schema_share` defines it. A document that validates but is not the answer has all of its paths.
"""

from __future__ import annotations

import functools
import json
import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

import jsonschema_rs

from groupwise.rewards.extract import fenced_or_tagged
from groupwise.rewards.format import excerpt, score_correct
from groupwise.rewards.json.schema_errors import ErrorLister
from groupwise.rewards.json.schema_share import SchemaOutline, outline_of, share
from groupwise.types import Score

PATHS_REWARD = 0.6
MAX_ERRORS = 1_000
"""A document with more errors gets no reward, nor does one that could have too many (`schema_errors`)."""
MAX_PATTERN_BYTES = 1 << 20
"""Maximum size of a compiled pattern."""
MAX_JSON_CHARS = 65_536
MAX_DEPTH = 64
MAX_NUMBER_CHARS = 64

_LANGUAGES = frozenset(("json",))
_OPENING = {"}": "{", "]": "["}
# To the next bracket outside strings. An unclosed string extends to the end of its line, so that no character is
# scanned twice.
_NEXT_BRACKET = re.compile(r'(?:[^"{}\[\]]++|"(?:[^"\\\n]|\\.)*+"?)*+([{}\[\]])')
_OPEN_BRACKET = re.compile(r"([{\[])")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class NotJsonError(ValueError):
    """The text is not accepted as JSON; the message says why."""


class SchemaError(ValueError):
    """The schema cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class CompiledSchema:
    validator: jsonschema_rs.Validator
    outline: SchemaOutline
    lister: ErrorLister


@functools.lru_cache(maxsize=1024)
def compile_schema(schema: str) -> CompiledSchema:
    """Compile a schema from its JSON text, once per process; raise `SchemaError`."""
    try:
        document = parse_json(schema)
    except NotJsonError as error:
        raise SchemaError(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise SchemaError(f"expected an object, got {excerpt(schema, 40)}")
    options: dict[str, Any] = {
        "validate_formats": True,
        "retriever": _refuse,
        "mask": "value",  # messages must not carry the document along
        "pattern_options": jsonschema_rs.RegexOptions(MAX_PATTERN_BYTES, MAX_PATTERN_BYTES),
    }
    try:
        validator = jsonschema_rs.validator_for(document, **options)
        lister = ErrorLister(document, **options)
    except jsonschema_rs.ReferencingError as error:
        raise SchemaError(f"{error}; only references within the schema are followed") from None
    except jsonschema_rs.ValidationError as error:
        raise SchemaError(_explain(error)) from None
    except ValueError as error:  # an unknown draft
        raise SchemaError(str(error)) from None
    old_drafts = (jsonschema_rs.Draft4Validator, jsonschema_rs.Draft6Validator, jsonschema_rs.Draft7Validator)
    outline = outline_of(document, ignores_beside_ref=isinstance(validator, old_drafts))
    return CompiledSchema(validator, outline, lister)


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is outside the schema, and nothing is fetched")


def _explain(error: jsonschema_rs.ValidationError) -> str:
    place = "/".join(map(str, error.instance_path)) or "the root"
    if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Referencing):
        return f"{error.message}; only references within the schema are followed"
    if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Format) and error.kind.format == "regex":
        return f"the pattern at {place} is not a linear-time regular expression (no look-around, no back-reference)"
    return f"not a valid schema at {place}: {error.message}"


def score_json(
    schema: str, answer: str, completion: str, verifier: str, *, paths_reward: float = PATHS_REWARD
) -> Score:
    """Score a completion; `schema` and `answer` are JSON texts, and "" means that any valid document is right."""
    text = find_json(completion)
    if text is None:
        return score_correct(None, verifier, "no JSON found", paths=0.0)
    return score_document(schema, answer, text, verifier, paths_reward=paths_reward)


def score_document(schema: str, answer: str, text: str, verifier: str, *, paths_reward: float = PATHS_REWARD) -> Score:
    """Score a text that is the document itself."""
    compiled = compile_schema(schema)
    try:
        document = parse_json(text)
    except NotJsonError as error:
        return score_correct(None, verifier, f"not JSON: {excerpt(str(error))}", paths=0.0)
    if not compiled.validator.is_valid(document):
        reached, fault = _partial(compiled, document)
        return score_correct(False, verifier, excerpt(fault, 160), paths=paths_reward * reached)
    shown = excerpt(text.strip())
    if answer and not is_same_json(_parse_answer(answer), document):
        return score_correct(False, verifier, f"valid, but another value: {shown}", paths=paths_reward)
    return score_correct(True, verifier, shown, paths=0.0)


def _partial(compiled: CompiledSchema, document: Any) -> tuple[float, str]:
    """Return the share of valid paths, and the first error in words."""
    errors = compiled.lister.errors(document)
    if not errors or len(errors) > MAX_ERRORS:
        return 0.0, "invalid" if not errors else f"more than {MAX_ERRORS} errors"
    place = "/".join(map(str, errors[0].instance_path)) or "the root"
    return share(compiled.outline, document, errors), f"at {place}: {errors[0].message}"


def find_json(completion: str) -> str | None:
    """Return the last ```` ```json ```` block, else the last block, else `<answer>`, else the last outer {…} or […]."""
    text = fenced_or_tagged(completion, _LANGUAGES, skip_strings=True)
    if text is None:
        text = last_brackets(completion)
    return text if text and text.strip() else None


def last_brackets(text: str) -> str | None:
    """Return the last outermost {…} or […] that is closed. Brackets in its strings do not count."""
    span: tuple[int, int] | None = None
    open_brackets: list[str] = []
    start = position = 0
    while token := (_NEXT_BRACKET.match if open_brackets else _OPEN_BRACKET.search)(text, position):
        position, bracket = token.end(), token[1]
        if not open_brackets:
            start = token.start()
        if bracket in "{[":
            open_brackets.append(bracket)
        elif open_brackets.pop() != _OPENING[bracket]:
            open_brackets.clear()
        elif not open_brackets:
            span = (start, position)
    return None if span is None else text[span[0] : span[1]]


def parse_json(text: str) -> Any:
    """Return the value of a text that is only JSON; raise `NotJsonError` otherwise.

    Refused although Python's `json` accepts it: repeated keys, NaN and Infinity, numbers that overflow or have more
    than 64 characters, half a surrogate pair, more than 64 KB of text or 64 levels. Length and depth are checked before
    anything is parsed.
    """
    if len(text) > MAX_JSON_CHARS:
        raise NotJsonError(f"longer than {MAX_JSON_CHARS} characters")
    # Most texts have too few brackets to be deep.
    if text.count("{") + text.count("[") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise NotJsonError(f"nested more than {MAX_DEPTH} deep")
    try:
        value = _DECODER.decode(text)
        if not text.isascii():
            text.encode()
        if "\\u" in text and _SURROGATE_ESCAPE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise NotJsonError("half a surrogate pair") from None
    except ValueError as error:
        raise NotJsonError(str(error)) from None
    return value


def _depth(text: str) -> int:
    depth = deepest = position = 0
    while token := _NEXT_BRACKET.match(text, position):
        position = token.end()
        depth += 1 if token[1] in "{[" else -1
        deepest = max(deepest, depth)
    return deepest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise NotJsonError("a key is repeated in one object")
    return found


def _integer(digits: str) -> int:
    if len(digits) > MAX_NUMBER_CHARS:
        raise NotJsonError(f"a number of more than {MAX_NUMBER_CHARS} characters")
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits) if len(digits) <= MAX_NUMBER_CHARS else math.inf
    if not math.isfinite(value):
        raise NotJsonError(f"a number that is too large or has more than {MAX_NUMBER_CHARS} characters")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise NotJsonError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_real, parse_constant=_refuse_constant
)


def is_same_json(one: Any, other: Any) -> bool:
    """Compare as JSON: keys in any order, items in order; 1 equals 1.0, but true does not equal 1."""
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(is_same_json(value, other[key]) for key, value in one.items())
        case list(), list():
            return len(one) == len(other) and all(map(is_same_json, one, other))
        case (bool(), _) | (_, bool()):
            return one is other
    return bool(one == other)


# Each answer is needed for every rollout of its group.
_parse_answer = functools.lru_cache(maxsize=1024)(parse_json)
