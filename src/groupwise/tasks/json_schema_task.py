"""Requests to be answered with JSON, from a .jsonl file with the JSON schema (and perhaps the answer) of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from groupwise.config.build import ConfigError
from groupwise.rewards.json.json_text import NotJsonError, parse_json
from groupwise.rewards.json.score_json import SchemaError, compile_schema, score_document, score_json
from groupwise.tasks.rows import Row, load_rows, load_split, plain_text, stable_id
from groupwise.tasks.task import Split
from groupwise.types import Message, Problem, Score, Verdict

SCHEMA_MARK = "{schema}"


@dataclass(frozen=True)
class JsonSchema:
    """Requests to answer with JSON that validates against a schema, and perhaps is one certain value.

    Reward: `correct` 1.0 for a document that validates and, where the row has an answer, equals it; else `paths`:
    `paths_reward` × the share of the schema's required paths that are there and valid. A document that validates and
    is not the answer has all of `paths`.
    """

    train: str = ""
    """A .jsonl path or hub name to train on; empty to score rows that come from elsewhere."""
    held_out: str | None = None
    """The same for held-out problems; or set held_out_share."""
    held_out_share: float = 0.0
    """Share of `train` to hold out, chosen by a hash of prompt and schema: adding rows moves no other row."""
    prompt_key: str = "prompt"
    """Column of the prompt."""
    schema_key: str = "schema"
    """Column of the JSON schema: an object, or its JSON text."""
    answer_key: str | None = None
    """Column of the JSON value that is the only right one; without it whatever validates is right."""
    instruction: str = "Answer with JSON in a ```json block. It must validate against this JSON schema:\n{schema}"
    """Follows the prompt; `{schema}` stands for the schema's text."""
    paths_reward: float = 0.6
    """For a document that is not right but has all of the schema's required paths; 0 switches partial credit off."""

    verifier: ClassVar[str] = "json-schema/1"

    def __post_init__(self) -> None:
        if not 0.0 <= self.held_out_share < 1.0:
            raise ConfigError(f"held_out_share = {self.held_out_share}: expected a share of at least 0 and below 1")
        if self.held_out is not None and self.held_out_share:
            raise ConfigError("set either held_out (a file of its own) or held_out_share (as in 0.1), and not both")
        if not 0.0 <= self.paths_reward < 1.0:
            raise ConfigError(f"paths_reward = {self.paths_reward}: expected at least 0 and below 1")

    def problems(self, split: Split) -> Sequence[Problem]:
        return load_split(self._load, split == "held_out", self.train, self.held_out, self.held_out_share)

    def _load(self, source: str, hub_split: str, key: str) -> list[Problem]:
        return [self._problem(row) for row in load_rows(source, hub_split, key=key)]

    def _problem(self, row: Row) -> Problem:
        prompt = row.text(self.prompt_key)
        schema = _read_schema(row, self.schema_key)
        answer = "" if self.answer_key is None else _read_answer(row, self.answer_key, schema)
        instruction = self.instruction.replace(SCHEMA_MARK, schema)
        message = Message("user", f"{prompt.strip()}\n{instruction}".strip())
        return Problem(stable_id("json-schema", plain_text(prompt), schema), (message,), answer, {"schema": schema})

    def score(self, problem: Problem, completion: str) -> Score:
        return score_json(
            problem.meta["schema"], problem.answer, completion, self.verifier, paths_reward=self.paths_reward
        )

    def bare_problem(self, row: Row) -> Problem:
        """From `schema` (an object or its JSON text) and, where the row has one, `answer`."""
        schema = _read_schema(row, "schema")
        answer = _read_answer(row, "answer", schema) if "answer" in row.values else ""
        return Problem(stable_id("json-schema", schema, answer), (), answer, {"schema": schema})

    def gold_completion(self, problem: Problem) -> str | None:
        return f"```json\n{problem.answer}\n```" if problem.answer else None


def _read_schema(row: Row, key: str) -> str:
    """The schema's JSON text, which is known to compile."""
    value = row.get(key)
    if isinstance(value, str):
        schema = value.strip()
    elif isinstance(value, dict):
        schema = _to_text(value)
    else:
        raise row.error(f"{key!r} is {value!r:.60}, expected a JSON schema: an object, or a string with its JSON")
    try:
        compile_schema(schema)
    except SchemaError as error:
        raise row.error(f"{key!r} cannot be used: {error}") from None
    return schema


def _read_answer(row: Row, key: str, schema: str) -> str:
    """The answer's JSON text. It must be a right answer itself: read as strictly as a completion, and valid."""
    answer = _to_text(row.get(key))
    try:
        parse_json(answer)
    except NotJsonError as error:
        raise row.error(f"{key!r} cannot be used: {error}") from None
    score = score_document(schema, answer, answer, "")
    if score.verdict is not Verdict.CORRECT:
        raise row.error(
            f"{key!r} does not validate against the schema: {score.detail}; give the value itself, not its text"
        )
    return answer


def _to_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
