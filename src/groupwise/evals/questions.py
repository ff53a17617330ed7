"""What an evaluation asks: a task, its problems, and how completions are sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.config import ConfigError, Recipe, apply_override
from groupwise.evals.held_out import eval_max_new_tokens
from groupwise.tasks import task_class
from groupwise.tasks.task import Split
from groupwise.types import SamplingParams

MAX_NEW_TOKENS = 1024
"""Limit for a model that is not a run and so has no recipe."""

SHORT_NAMES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "math500": ("math", {"held_out": "HuggingFaceH4/MATH-500"}),
    "sql": ("sql-jsonl", {}),
    "general": ("groupwise.evals.general_format:GeneralFormat", {}),
}
"""Names that an evaluation accepts besides those of `groupwise tasks`: (task, options)."""


def task_name(task: str) -> str:
    """Return the full name of a task that may be given by a short name."""
    return SHORT_NAMES.get(task, (task, {}))[0]


def check_task(task: str) -> None:
    """Raise a ConfigError if there is no such task."""
    task_class(task_name(task))


def task_options(task: str, tasks: Sequence[str], overrides: Sequence[str], recipe: Recipe | None) -> dict[str, Any]:
    """Return the options of a task: those of the recipe if it is the recipe's own task, then `--set`.

    With several tasks, the override `TASK.key=value` applies to one of them and `key=value` to all.
    """
    is_own = recipe is not None and task == recipe.task.name
    options: dict[str, Any] = dict(recipe.task.options) if recipe is not None and is_own else {}
    options |= SHORT_NAMES.get(task, (task, {}))[1]
    for override in overrides:
        first, _, rest = override.partition(".")
        if first not in tasks:
            apply_override(options, override)
        elif first == task:
            apply_override(options, rest)
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    task: str
    """Name of a task, or one of SHORT_NAMES."""
    options: Mapping[str, Any]
    split: Split = "held_out"
    limit: int = 0
    """Number of problems, from the first; 0: all."""
    n: int = 1
    """Completions per problem."""
    ks: tuple[int, ...] = (1,)
    temperature: float | None = None
    """None: greedy for one completion per problem, else 1."""
    max_new_tokens: int = 0
    """0: the value of the run's recipe, or MAX_NEW_TOKENS."""
    seed: int = 0

    def __post_init__(self) -> None:
        def refuse(message: str) -> ConfigError:
            return ConfigError(f"eval: {message}")

        if self.n < 1:
            raise refuse(f"--n {self.n}: must be at least 1")
        if not self.ks or not all(1 <= k <= self.n for k in self.ks):
            asked = ",".join(map(str, self.ks))
            raise refuse(f"--k {asked}: each must be from 1 to --n {self.n}; raise --n to {max(self.ks, default=1)}")
        if self.limit < 0 or self.max_new_tokens < 0 or self.seed < 0:
            raise refuse("--limit, --max-new-tokens and --seed must not be negative")
        if self.temperature is not None and not 0 <= self.temperature <= 100:
            raise refuse(f"--temperature {self.temperature}: must be from 0 to 100; 0 is greedy")
        if self.temperature == 0 and self.n > 1:
            raise refuse(f"--temperature 0 --n {self.n} would sample the same completion {self.n} times; set --n 1")

    def sampling(self, recipe: Recipe | None) -> SamplingParams:
        greedy = 0.0 if self.n == 1 else 1.0
        return SamplingParams(
            max_new_tokens=self.max_new_tokens or (eval_max_new_tokens(recipe) if recipe else MAX_NEW_TOKENS),
            temperature=greedy if self.temperature is None else self.temperature,
            stop_strings=recipe.evaluation.stop_strings if recipe else (),
        )
