"""A result: what one evaluation of one model on one task measured, as a folder. Nothing here imports torch.

    RESULT/ result.json          model, task, data, verifier and sampling; scores with their intervals
            completions.jsonl    one scored group per line, as in a run's eval_rollouts

Contract: `read_result(write_result(result)) == result`. result.json exists from the start, with `is_finished` false and
no scores until all completions are there; completions.jsonl grows line by line, and a kill loses at most its last line.
A damaged file raises a `RunReadError` that names it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groupwise.base.json_values import plain
from groupwise.base.outside import file_json
from groupwise.base.text_layout import percent
from groupwise.runs.files import RunReadError, append_line, encode_line, read_records, reading, write_atomic, writing
from groupwise.runs.records import group_from_json, group_to_json
from groupwise.runs.typed import typed
from groupwise.types import Problem, ScoredGroup

FORMAT = 1
"""Version of result.json. A reader refuses versions that it does not know."""
RESULT = "result.json"
COMPLETIONS = "completions.jsonl"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A score with its 95 % interval. The problems are the independent samples."""

    value: float
    """NaN when nothing could be judged; null in the file."""
    low: float
    high: float
    n: int
    """Number of problems."""
    method: str
    """Method of the interval: wilson, plus_four, bootstrap."""
    left_out: int = 0
    """Number of problems left out because too few of their completions could be judged."""


Scores = Mapping[str, Estimate]
"""Scores by name: pass@1, pass@8, maj@8, best_of_16_by_verifier, truncated_share, mean_tokens ..."""
NOT_SHARES = ("mean_tokens", "mean_reward", "perplexity")


def say_estimate(name: str, estimate: Estimate) -> tuple[str, str]:
    """Return value and interval for people: shares in percent, other values unchanged."""
    low, high = (say_value(name, end).removesuffix(" %") for end in (estimate.low, estimate.high))
    return say_value(name, estimate.value), f"{low} to {high}"


def say_value(name: str, value: float) -> str:
    return f"{value:.2f}" if name in NOT_SHARES else percent(value)


@dataclass(frozen=True, slots=True)
class Result:
    model: Mapping[str, Any]
    """path, checkpoint (None without one), fingerprint of the files of weights."""
    task: Mapping[str, Any]
    """name, options."""
    data: Mapping[str, Any]
    """split, fingerprint of all its problems in order, count of the problems that were asked."""
    verifier: str
    """Name and version of the verifier."""
    sampling: Mapping[str, Any]
    """n (completions per problem), temperature, max_new_tokens, seed."""
    recipe: str | None = None
    """Fingerprint of the recipe that trained the model; None when it is not known."""
    scores: Scores = field(default_factory=dict)
    by: Mapping[str, Mapping[str, Scores]] = field(default_factory=dict)
    """The same scores by property of the problems: {"level": {"3": scores}, "subject": ...}."""
    contamination: Mapping[str, Any] | None = None
    """Problems that are also in the model's training set: see contamination.py. None when that is not known."""
    cost: Mapping[str, float] = field(default_factory=dict)
    """seconds, over all sessions; tokens of the completions."""
    versions: Mapping[str, str] = field(default_factory=dict)
    is_finished: bool = False

    def identity(self) -> dict[str, Any]:
        """Return what determines the completions and their scores: a different evaluation differs in one of these."""
        options = plain(dict(self.task["options"]))
        return {
            "model": self.model["fingerprint"],
            "task": {"name": self.task["name"], "options": options},
            "data": plain(dict(self.data)),
            "verifier": self.verifier,
            "sampling": plain(dict(self.sampling)),
        }


def is_result(folder: Path) -> bool:
    return os.path.lexists(folder / RESULT)


def write_result(folder: Path, result: Result) -> None:
    text = json.dumps(result_to_json(result), ensure_ascii=True, allow_nan=False, indent=1) + "\n"
    with writing(folder / RESULT):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / RESULT, [text.encode("ascii")])


def result_to_json(result: Result) -> dict[str, Any]:
    """Return the content of result.json."""
    return {"format": FORMAT} | dict(plain(result))


def read_result(folder: Path) -> Result:
    path = folder / RESULT
    with reading(path):
        try:
            table = file_json(path)
        except FileNotFoundError:
            raise RunReadError(f"{folder} has no {RESULT}: it is not a folder of `groupwise eval`") from None
        if not isinstance(table, dict) or table.get("format") != FORMAT:
            found = table.get("format") if isinstance(table, dict) else table
            raise ValueError(f"format {found!r:.40}, and this version reads {FORMAT}; evaluate again")
        result: Result = typed(Result, table)
        for part, key in (("model", "fingerprint"), ("task", "name"), ("task", "options"), ("data", "fingerprint")):
            if key not in table[part]:
                raise ValueError(f"{part} has no {key!r}; evaluate again")
        typed({"options": Mapping[str, Any]}, result.task, "task")
        return result


def append_group(folder: Path, scored: ScoredGroup) -> None:
    with writing(folder / COMPLETIONS):
        append_line(folder / COMPLETIONS, encode_line(group_to_json(scored)), fsync=False)


def read_groups(folder: Path) -> list[ScoredGroup]:
    """Return the scored groups in the order of their completion; [] when there are none yet."""
    return read_records(folder / COMPLETIONS, group_from_json)


def data_fingerprint(problems: Sequence[Problem]) -> str:
    """Return 16 hex digits of the ids, messages and answers in order."""
    digest = hashlib.sha256()
    for problem in problems:
        content = [problem.id, [[message.role, message.content] for message in problem.messages], problem.answer]
        digest.update(json.dumps(content).encode() + b"\n")
    return digest.hexdigest()[:16]
