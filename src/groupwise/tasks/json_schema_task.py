"""Requests for JSON, from a .jsonl file with the JSON schema and optionally the answer of each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

from groupwise.rewards.json.score_json import SchemaError, compile_schema, score_document, score_json
from groupwise.tasks.rows import Row, plain_text, stable_id
from groupwise.tasks.task import DataTask, ShareBelowOne
from groupwise.types import Message, Problem, Score, Verdict


@dataclass(frozen=True)
class JsonSchema(DataTask):
    """Requests for JSON that validates against a schema and, optionally, equals a given answer.

    Reward: `correct` 1.0 for a document that validates and, where the row has an answer, equals it; else `paths`:
    `paths_reward` × the share of the schema's required paths that are present and valid. A document that validates but
    is not the answer gets all of `paths`.
    """

    prompt_key: str = "prompt"
    """Column of the prompt."""
    schema_key: str = "schema"
    """Column of the JSON schema: an object, or its JSON text."""
    answer_key: str | None = None
    """Column of the only right JSON value; without it, any document that validates is right."""
    instruction: str = "Answer with JSON in a ```json block. It must validate against this JSON schema:\n{schema}"
    """Follows the prompt; `{schema}` stands for the schema's text."""
    paths_reward: ShareBelowOne = 0.6
    """Reward for a document that is not right but has all required paths; 0 turns partial credit off."""

    verifier: ClassVar[str] = "json-schema/2"

    def problem(self, row: Row, is_held_out: bool) -> Problem:
        prompt = row.text(self.prompt_key)
        schema = _read_schema(row, self.schema_key)
        answer = "" if self.answer_key is None else _read_answer(row, self.answer_key, schema)
        instruction = self.instruction.replace("{schema}", schema)
        message = Message("user", f"{prompt.strip()}\n{instruction}".strip())
        return Problem(stable_id("json-schema", plain_text(prompt), schema), (message,), answer, {"schema": schema})

    def score(self, problem: Problem, completion: str) -> Score:
        schema = problem.meta["schema"]
        return score_json(schema, problem.answer, completion, self.verifier, paths_reward=self.paths_reward)

    def bare_problem(self, row: Row) -> Problem:
        """Read a row {schema} (an object or its JSON text), optionally with `answer`."""
        schema = _read_schema(row, "schema")
        answer = _read_answer(row, "answer", schema) if "answer" in row.values else ""
        return Problem(stable_id("json-schema", schema, answer), (), answer, {"schema": schema})

    def gold_completion(self, problem: Problem) -> str | None:
        return f"```json\n{problem.answer}\n```" if problem.answer else None


def _read_schema(row: Row, key: str) -> str:
    """Return the schema's JSON text after checking that it compiles."""
    value = row.get(key)
    if not isinstance(value, (str, dict)):
        raise row.error(f"{key!r} is {value!r:.60}, expected a JSON schema: an object, or a string with its JSON")
    schema = value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    try:
        compile_schema(schema)
    except SchemaError as error:
        raise row.error(f"{key!r} cannot be used: {error}") from None
    return schema


def _read_answer(row: Row, key: str, schema: str) -> str:
    """Return the answer's JSON text after checking that it would be scored as correct."""
    answer = json.dumps(row.get(key), ensure_ascii=False)
    score = score_document(schema, answer, answer, "")
    if score.verdict is not Verdict.CORRECT:
        raise row.error(f"{key!r} cannot be used: {score.detail}; give the value itself, not its JSON text")
    return answer
