"""Reward functions: score a task's completions with plain Python, one function or several with weights.

A reward function is called as `function(completion, row)`. The completion is text; `row` is the problem's row of data,
a dict with at least `prompt`. It returns a number or a `Score`. It follows the rules of every verifier: it depends on
its arguments alone, and it raises when it cannot judge.

Each function is a named part of the score, multiplied by its weight. The first one decides the verdict, and with it
pass@1: a number of 1 or more is correct. The name "task" stands for the task's own verifier.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import types
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from groupwise.config import TaskConfig
from groupwise.config.build import require
from groupwise.config.named_code import is_function, load_named
from groupwise.tasks import make_task
from groupwise.tasks.jsonl_task import Jsonl
from groupwise.tasks.task import Task
from groupwise.types import Problem, Score, Verdict

Reward = Callable[[str, dict[str, Any]], Any]

OWN = "task"
"""The name that stands for the task's own verifier."""
LOCAL = "local"
"""The module that a recipe names for a function which was passed as an object and cannot be imported."""


@dataclass(frozen=True)
class RewardFunction:
    name: str
    """The name of its part in the score."""
    call: Reward | None
    """None: the task's own verifier."""
    weight: float = 1.0
    version: str = ""
    """Name and hash of the source, as in "concise/3f2a9c1e"."""


@dataclass(frozen=True)
class WithRewards:
    """A task whose completions are scored by reward functions. All else is the task's own."""

    task: Task
    functions: tuple[RewardFunction, ...]

    def __getattr__(self, name: str) -> Any:
        # What else the task offers: demonstrations, gold answers. Not before unpickling has set the fields.
        if name.startswith("__") or "task" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["task"], name)

    @property
    def verifier(self) -> str:
        return " & ".join(function.version or self.task.verifier for function in self.functions)

    def problems(self, split: Any) -> Any:
        return self.task.problems(split)

    def score(self, problem: Problem, completion: str) -> Score:
        scores = [self._one(function, problem, completion) for function in self.functions]
        decisive = next((score for score in scores if score.is_error), scores[0])
        is_plain = len(scores) == 1 and self.functions[0].weight == 1
        if not decisive.is_error and not is_plain:
            pairs = zip(self.functions, scores, strict=True)
            parts = {function.name: function.weight * score.reward for function, score in pairs}
            decisive = replace(decisive, reward=sum(parts.values()), parts=parts)
        return replace(decisive, verifier=self.verifier)

    def _one(self, function: RewardFunction, problem: Problem, completion: str) -> Score:
        if function.call is None:
            return self.task.score(problem, completion)
        found = function.call(completion, row_of(problem))
        if isinstance(found, Score):
            return found
        if not hasattr(type(found), "__float__"):
            raise TypeError(f"{function.name} returned {found!r:.80}; return a number or a groupwise.Score")
        value = float(found)
        return Score(value, Verdict.CORRECT if value >= 1 else Verdict.WRONG, {function.name: value})


def row_of(problem: Problem) -> dict[str, Any]:
    """Return the row of data that a reward function sees, as a copy that it may change."""
    kept = problem.meta.get("row")
    return {**problem.meta, "prompt": problem.question, "answer": problem.answer} if kept is None else dict(kept)


def is_local(config: TaskConfig) -> bool:
    """Return whether the task, or a reward function of it, was passed as an object and cannot be imported."""
    names = [config.reward] if isinstance(config.reward, str) else config.reward or ()
    return any(name.startswith(f"{LOCAL}:") for name in (config.name, *names))


def task_of(config: TaskConfig, given: Mapping[str, Reward] | None = None, task: Task | None = None) -> Task:
    """Make the task of a recipe, with the reward functions that it names.

    `given` holds functions that cannot be imported, by name. `task` replaces the task that the recipe names.
    """
    if task is None:
        require(
            not config.name.startswith(f"{LOCAL}:"),
            f"task.name = {config.name!r}: this task was passed to groupwise.train as an object and cannot be "
            "imported; pass it again, as in groupwise.resume(run, task=my_task)",
        )
        task = make_task(config.name, config.options)
    if not config.reward:
        return task
    weights = {config.reward: 1.0} if isinstance(config.reward, str) else config.reward
    functions = tuple(_load(name, weight, given or {}) for name, weight in weights.items())
    [(name, count)] = Counter(function.name for function in functions).most_common(1)
    require(count == 1, f"task.reward: two functions are called {name!r}; rename one")
    # The functions judge, so rows need no answer, and the functions see all columns.
    return WithRewards(replace(task, keep_row=True) if isinstance(task, Jsonl) else task, functions)


def _load(name: str, weight: float, given: Mapping[str, Reward]) -> RewardFunction:
    if name == OWN:
        return RewardFunction(OWN, None, weight)
    module_name, _, function_name = name.partition(":")
    where = f"task.reward = {name!r}"
    require(
        bool(function_name),
        f"{where}: expected module:function for your own, or {OWN!r} for the task's own verifier",
    )
    require(
        module_name != LOCAL or function_name in given,
        f"{where}: this function was passed to groupwise.train as an object and cannot be imported; pass it again, as "
        f"in groupwise.resume(run, reward={function_name}). The run directory keeps its source in "
        f"rewards/{function_name}.py",
    )
    found = given[function_name] if module_name == LOCAL else load_named(name, where)
    require(
        is_function(found, 2), f"{where}: not a function that takes (completion, row) and returns a number or a Score"
    )
    return RewardFunction(function_name, found, weight, f"{function_name}/{version_of(found)}")


def name_of(thing: Any) -> str:
    """Name a function or class as a recipe does: "module:name" if it can be imported, else "local:name"."""
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    if module is None or module.__name__ == "__main__" or getattr(module, name, None) is not thing:
        return f"{LOCAL}:{name.rpartition('.')[2].strip('<>')}"
    return f"{module.__name__}:{name}"


def source_of(thing: Any) -> str:
    """Return the source text of a function or callable object; if it has none, what it was compiled to."""
    target = thing if hasattr(thing, "__code__") or isinstance(thing, type) else type(thing)
    try:
        return inspect.getsource(target)
    except (OSError, TypeError):
        return f"# no source\n# {_compiled(thing)}\n"


def version_of(thing: Any) -> str:
    """Return a hash of the source. The source of a lambda is its whole line, so what it was compiled to counts."""
    is_lambda = getattr(thing, "__name__", "") == "<lambda>"
    return hashlib.sha256((_compiled(thing) if is_lambda else source_of(thing)).encode()).hexdigest()[:8]


def _compiled(thing: Any) -> str:
    code = getattr(thing, "__code__", None)
    return repr(thing) if code is None else repr(_plain_code(code))


def _plain_code(code: types.CodeType) -> tuple[Any, ...]:
    """Return what a function computes, without file names, line numbers and addresses."""
    constants = [_plain_code(one) if isinstance(one, types.CodeType) else one for one in code.co_consts]
    return code.co_code.hex(), constants, code.co_names
