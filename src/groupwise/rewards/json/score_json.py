"""Scores of JSON: a document is right when it validates against the schema and, if there is an answer, equals it.

`json_text` finds and parses documents, jsonschema-rs validates them. References are never fetched from the network or
from a file. Patterns run on a linear-time engine, so a schema whose patterns use look-around or back-references is
refused. Formats (`date`, `email` …) are checked in every draft; unknown ones are ignored.

Reward: `correct` 1.0; or `paths`, by default 0.6 × the share of the schema's required paths that are present and valid,
as `schema_share` defines it. A document that validates but is not the answer has all of its paths.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NoReturn

import jsonschema_rs

from groupwise.rewards.format import excerpt
from groupwise.rewards.json.json_text import NotJsonError, find_json, is_same_json, parse_json, parse_trusted
from groupwise.rewards.json.schema_share import SchemaOutline, outline_of, share
from groupwise.types import Score, Verdict

PATHS_REWARD = 0.6
MAX_ERRORS = 1_000
"""A document with more errors gets no reward."""
MAX_PATTERN_BYTES = 1 << 20
"""Maximum size of a compiled pattern."""

_SHORT = 80


class SchemaError(ValueError):
    """The schema cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class CompiledSchema:
    validator: jsonschema_rs.Validator
    outline: SchemaOutline


@functools.lru_cache(maxsize=1024)
def compile_schema(schema: str) -> CompiledSchema:
    """Compile a schema from its JSON text, once per process; raise `SchemaError`."""
    try:
        document = parse_json(schema)
    except NotJsonError as error:
        raise SchemaError(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise SchemaError(f"expected an object, got {excerpt(schema, 40)}")
    try:
        validator = jsonschema_rs.validator_for(
            document,
            validate_formats=True,
            retriever=_refuse,
            mask="value",  # messages must not carry the document along
            pattern_options=jsonschema_rs.RegexOptions(MAX_PATTERN_BYTES, MAX_PATTERN_BYTES),
        )
    except jsonschema_rs.ReferencingError as error:
        raise SchemaError(f"{error}; only references within the schema are followed") from None
    except jsonschema_rs.ValidationError as error:
        raise SchemaError(_explain(error)) from None
    except ValueError as error:  # an unknown draft
        raise SchemaError(str(error)) from None
    old_drafts = (jsonschema_rs.Draft4Validator, jsonschema_rs.Draft6Validator, jsonschema_rs.Draft7Validator)
    return CompiledSchema(validator, outline_of(document, ignores_beside_ref=isinstance(validator, old_drafts)))


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
        return Score(0.0, Verdict.UNPARSED, {"correct": 0.0, "paths": 0.0}, verifier, "no JSON found")
    return score_document(schema, answer, text, verifier, paths_reward=paths_reward)


def score_document(schema: str, answer: str, text: str, verifier: str, *, paths_reward: float = PATHS_REWARD) -> Score:
    """Score a text that is the document itself."""
    compiled = compile_schema(schema)
    try:
        document = parse_json(text)
    except NotJsonError as error:
        detail = f"not JSON: {excerpt(str(error))}"
        return Score(0.0, Verdict.UNPARSED, {"correct": 0.0, "paths": 0.0}, verifier, detail)
    if not compiled.validator.is_valid(document):
        reached, fault = _partial(compiled, document)
        paths = paths_reward * reached
        return Score(paths, Verdict.WRONG, {"correct": 0.0, "paths": paths}, verifier, excerpt(fault, 160))
    if answer and not is_same_json(parse_trusted(answer), document):
        parts = {"correct": 0.0, "paths": paths_reward}
        return Score(paths_reward, Verdict.WRONG, parts, verifier, f"valid, but another value: {_shown(text)}")
    return Score(1.0, Verdict.CORRECT, {"correct": 1.0, "paths": 0.0}, verifier, _shown(text))


def _partial(compiled: CompiledSchema, document: Any) -> tuple[float, str]:
    """Return the share of valid paths, and the first error in words."""
    errors = list(compiled.validator.iter_errors(document))
    if not errors or len(errors) > MAX_ERRORS:
        return 0.0, "invalid" if not errors else f"more than {MAX_ERRORS} errors"
    place = "/".join(map(str, errors[0].instance_path)) or "the root"
    return share(compiled.outline, document, errors), f"at {place}: {errors[0].message}"


def _shown(text: str) -> str:
    # A shortcut: a short printable text is its own excerpt.
    text = text.strip()
    return text if len(text) <= _SHORT and text.isprintable() else excerpt(text, _SHORT)
