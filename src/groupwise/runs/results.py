"""A result: what one evaluation of one model on one task found, as a folder. Nothing here imports torch.

    RESULT/ result.json          what was asked, of whom, with which verifier and data; scores with their intervals
            completions.jsonl    one scored group a line, in the form of a run's eval_rollouts

Contract: `read_result(write_result(result)) == result`. result.json is there from the first moment, with `is_finished`
false and no scores until all completions are in; completions.jsonl grows line by line and loses at most its last one to
a kill. A file that is not what it should be is a `RunReadError` that names it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groupwise.runs.files import (
    RunReadError,
    append_line,
    encode_line,
    finite_or_none,
    plain,
    read_lines,
    repair_tail,
    write_atomic,
    write_failure,
)
from groupwise.runs.records import group_from_json, group_to_json
from groupwise.types import Problem, ScoredGroup

FORMAT = 1
"""Of result.json. A reader refuses a format that it does not know."""
RESULT = "result.json"
COMPLETIONS = "completions.jsonl"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A score with its 95 % interval. The problems are the independent draws."""

    value: float
    """NaN where nothing could be judged; null in the file."""
    low: float
    high: float
    n: int
    """Problems that it is over."""
    method: str
    """Of the interval: wilson, plus_four, bootstrap."""
    left_out: int = 0
    """Problems that had too few completions that could be judged."""


Scores = Mapping[str, Estimate]
"""By name: pass@1, pass@8, maj@8, best_of_16_by_verifier, truncated_share, mean_tokens ..."""
NOT_SHARES = ("mean_tokens", "mean_reward", "perplexity")


def say_estimate(name: str, estimate: Estimate) -> tuple[str, str]:
    """Value and interval for people: shares in percent, anything else as it is."""
    low, high = (say_value(name, end).removesuffix(" %") for end in (estimate.low, estimate.high))
    return say_value(name, estimate.value), f"{low} to {high}"


def say_value(name: str, value: float) -> str:
    return f"{value:.2f}" if name in NOT_SHARES else f"{100 * value:.1f} %"


@dataclass(frozen=True, slots=True)
class Result:
    model: Mapping[str, Any]
    """path, checkpoint (None where there is none), fingerprint of the weights' files."""
    task: Mapping[str, Any]
    """name, options."""
    data: Mapping[str, Any]
    """split, fingerprint of all its problems in order, count: how many of them were asked."""
    verifier: str
    """Name and version of what judged."""
    sampling: Mapping[str, Any]
    """n (completions a problem), temperature, max_new_tokens, seed."""
    recipe: str | None = None
    """Fingerprint of the recipe that trained the model, where that is known."""
    scores: Scores = field(default_factory=dict)
    by: Mapping[str, Mapping[str, Scores]] = field(default_factory=dict)
    """The same by what the problems say of themselves: {"level": {"3": scores}, "subject": ...}."""
    contamination: Mapping[str, Any] | None = None
    """Problems that the model's training set has too: see contamination.py. None where that is not known."""
    cost: Mapping[str, float] = field(default_factory=dict)
    """seconds, over all sittings; tokens, of the completions."""
    versions: Mapping[str, str] = field(default_factory=dict)
    is_finished: bool = False

    def identity(self) -> dict[str, Any]:
        """What decides the completions and their scores: another evaluation differs in one of these."""
        options = plain(dict(self.task["options"]))
        return {
            "model": self.model["fingerprint"],
            "task": {"name": self.task["name"], "options": options},
            "data": plain(dict(self.data)),
            "verifier": self.verifier,
            "sampling": plain(dict(self.sampling)),
        }


def is_result(folder: Path) -> bool:
    return (folder / RESULT).is_file()


def write_result(folder: Path, result: Result) -> None:
    table = result_to_json(result)
    text = json.dumps(table, ensure_ascii=True, allow_nan=False, indent=1) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / RESULT, [text.encode("ascii")])
    except OSError as error:
        raise write_failure(folder / RESULT, error) from error


def result_to_json(result: Result) -> dict[str, Any]:
    """What result.json holds."""
    return {"format": FORMAT} | {
        field.name: _to_json(getattr(result, field.name)) for field in dataclasses.fields(Result)
    }


def read_result(folder: Path) -> Result:
    path = folder / RESULT
    try:
        table = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RunReadError(f"{folder} has no {RESULT}: is it a folder that `groupwise eval` wrote?") from None
    except (OSError, ValueError) as error:
        raise RunReadError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        found = table.get("format") if isinstance(table, dict) else table
        raise RunReadError(f"{path}: format {found!r:.40}, and this version reads {FORMAT}; evaluate again")
    try:
        known = {field.name: table[field.name] for field in dataclasses.fields(Result)}
        by = {
            kind: {key: _scores_from_json(scores) for key, scores in groups.items()}
            for kind, groups in known["by"].items()
        }
        return Result(**(known | {"scores": _scores_from_json(known["scores"]), "by": by}))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunReadError(f"{path}: not the result it should be ({error!r})") from error


def append_group(folder: Path, scored: ScoredGroup) -> None:
    try:
        append_line(folder / COMPLETIONS, encode_line(group_to_json(scored)), fsync=False)
    except OSError as error:
        raise write_failure(folder / COMPLETIONS, error) from error


def mend_groups(folder: Path) -> None:
    """Drop the half line that a kill left. For the one process that may write."""
    repair_tail(folder / COMPLETIONS)


def read_groups(folder: Path) -> list[ScoredGroup]:
    """The scored groups in the order in which they were completed; [] where there are none yet."""
    path = folder / COMPLETIONS
    groups = []
    for number, table in read_lines(path):
        try:
            groups.append(group_from_json(table))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunReadError(f"{path}, line {number}: not the record it should be ({error!r})") from error
    return groups


def data_fingerprint(problems: Sequence[Problem]) -> str:
    """16 hex digits of ids, messages and answers in their order."""
    digest = hashlib.sha256()
    for problem in problems:
        content = [problem.id, [[message.role, message.content] for message in problem.messages], problem.answer]
        digest.update(json.dumps(content).encode() + b"\n")
    return digest.hexdigest()[:16]


def _to_json(value: Any) -> Any:
    if isinstance(value, Estimate):
        table = dataclasses.asdict(value)
        return {name: finite_or_none(item) if isinstance(item, float) else item for name, item in table.items()}
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    return plain(value)


def _scores_from_json(table: Mapping[str, Any]) -> dict[str, Estimate]:
    names = {field.name for field in dataclasses.fields(Estimate)}
    scores = {}
    for name, entry in table.items():
        values: dict[str, Any] = {
            key: math.nan if value is None else value for key, value in entry.items() if key in names
        }
        scores[name] = Estimate(**values)
    return scores
