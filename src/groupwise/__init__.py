"""groupwise teaches a language model to reason: sample a group of answers, verify each, learn from the best (GRPO).

    import groupwise as gw

    def reward(completion, row):
        return float(row["answer"] in completion)

    run = gw.train("Qwen/Qwen3-0.6B", data="questions.jsonl", reward=reward, steps=100)
    run.plot()

Everything public is in `groupwise.__all__`; a name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from groupwise.api.train_runs import load_recipe as load_recipe
    from groupwise.api.train_runs import resume as resume
    from groupwise.api.train_runs import train as train
    from groupwise.api.use_runs import compare as compare
    from groupwise.api.use_runs import diagnose as diagnose
    from groupwise.api.use_runs import evaluate as evaluate
    from groupwise.api.use_runs import export as export
    from groupwise.api.use_runs import plan as plan
    from groupwise.api.use_runs import report as report
    from groupwise.api.use_runs import sample as sample
    from groupwise.config import ConfigError as ConfigError
    from groupwise.config import Recipe as Recipe
    from groupwise.rewards.extract import final_answer as final_answer
    from groupwise.rewards.extract import last_tag as last_tag
    from groupwise.runs.reader import Run as Run
    from groupwise.tasks import check_splits as check_splits
    from groupwise.tasks import make_task as make_task
    from groupwise.tasks.rows import stable_id as stable_id
    from groupwise.tasks.task import GeneratedTask as GeneratedTask
    from groupwise.tasks.task import Split as Split
    from groupwise.tasks.task import Task as Task
    from groupwise.types import Message as Message
    from groupwise.types import Problem as Problem
    from groupwise.types import Score as Score
    from groupwise.types import Verdict as Verdict

__version__ = "0.1.0"

_PLACES = {
    "groupwise.api.train_runs": ("load_recipe", "resume", "train"),
    "groupwise.api.use_runs": ("compare", "diagnose", "evaluate", "export", "plan", "report", "sample"),
    "groupwise.runs.reader": ("Run",),
    "groupwise.config": ("ConfigError", "Recipe"),
    "groupwise.types": ("Message", "Problem", "Score", "Verdict"),
    "groupwise.tasks.task": ("GeneratedTask", "Split", "Task"),
    "groupwise.tasks": ("check_splits", "make_task"),
    "groupwise.tasks.rows": ("stable_id",),
    "groupwise.rewards.extract": ("final_answer", "last_tag"),
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'groupwise' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
