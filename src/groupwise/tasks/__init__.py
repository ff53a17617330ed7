"""Tasks by name, and the check that the held-out split shares nothing with the training split.

A recipe names a task of the table below or your own as `module:Class`: a dataclass with the members of
`groupwise.tasks.task.Task`, on the Python path or in the current folder. Task modules are imported on demand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.config.build import ConfigError, build, nearest, require, shown
from groupwise.config.named_code import load_named
from groupwise.rewards.format import excerpt
from groupwise.tasks.rows import plain_text
from groupwise.tasks.task import Task
from groupwise.types import Problem

TASKS = {
    "arithmetic": "groupwise.tasks.arithmetic:Arithmetic",
    "code-jsonl": "groupwise.tasks.code_jsonl:CodeJsonl",
    "countdown": "groupwise.tasks.countdown:Countdown",
    "format-copy": "groupwise.tasks.format_copy:FormatCopy",
    "gsm8k": "groupwise.tasks.gsm8k:Gsm8k",
    "humaneval": "groupwise.tasks.humaneval:HumanEval",
    "json-schema": "groupwise.tasks.json_schema_task:JsonSchema",
    "jsonl": "groupwise.tasks.jsonl_task:Jsonl",
    "math": "groupwise.tasks.hendrycks_math:HendrycksMath",
    "math-hard": "groupwise.tasks.hendrycks_math:HendrycksMathHard",
    "mbpp": "groupwise.tasks.mbpp:Mbpp",
    "sql-jsonl": "groupwise.tasks.sql_jsonl:SqlJsonl",
}


def make_task(name: str, options: Mapping[str, Any]) -> Task:
    """Build the task that a recipe names; `options` is its table [task.options]."""
    task: Task = build(task_class(name), options, "task.options")
    return task


def task_class(name: str) -> type[Any]:
    """Return the dataclass of a task's name or of `module:Class`; its fields are the task's options."""
    if name not in TASKS and ":" not in name:
        raise ConfigError(f"task.name = {shown(name)}: unknown task; {nearest(name, TASKS)} Your own: 'module:Class'")
    return _load_class(TASKS.get(name, name))


def list_tasks() -> dict[str, str]:
    """Map the name of each task to its description in one line."""
    return {name: (_load_class(target).__doc__ or "").strip().partition("\n")[0] for name, target in TASKS.items()}


def check_splits(task: Task) -> tuple[Sequence[Problem], Sequence[Problem]]:
    """Load (train, held-out); raise ConfigError for an empty split, repeated ids or a problem in both."""
    train, held_out = task.problems("train"), task.problems("held_out")
    for split, problems in (("train", train), ("held_out", held_out)):
        require(len(problems) > 0, f"task: the {split} split has no problems; check its source, filters and counts")
        first: dict[str, int] = {}
        repeated = [one for place, one in enumerate(problems) if first.setdefault(one.id, place) != place]
        require(
            not repeated,
            f"task: the {split} split has {len(repeated)} problems with a repeated id: {_shown(repeated)}. "
            "Remove the repeated rows; different problems need different ids",
        )
    held_out_ids = {problem.id for problem in held_out}
    held_out_texts = {prompt_text(problem) for problem in held_out}
    shared = [problem for problem in train if problem.id in held_out_ids or prompt_text(problem) in held_out_texts]
    require(
        not shared,
        f"task: {len(shared)} of {len(train)} training problems are also held out, so held-out scores would include "
        f"training problems: {_shown(shared)}. Remove them from one of the sources, or hold out other rows",
    )
    return train, held_out


def prompt_text(problem: Problem) -> str:
    """Return the prompt without differences in spacing: equal texts mean equal problems."""
    return plain_text(problem.prompt_text)


def _shown(problems: Sequence[Problem]) -> str:
    return "; ".join(f"{one.id} {excerpt(plain_text(one.question), 60)!r}" for one in problems[:3])


def _load_class(target: str) -> type[Any]:
    where = f"task.name = {shown(target)}"
    found = load_named(target, where)
    if not isinstance(found, type) or not dataclasses.is_dataclass(found):
        raise ConfigError(
            f"{where}: not a dataclass; put @dataclass(frozen=True) above the class, whose fields are the options"
        )
    # A field without a default is not an attribute of the class, although every instance has it.
    members = {*dir(found), *(field.name for field in dataclasses.fields(found))}
    missing = [member for member in ("problems", "score", "verifier") if member not in members]
    if missing:
        raise ConfigError(f"{where}: the class lacks {', '.join(missing)}; see groupwise.tasks.task.Task")
    return found
