"""What the doctor looks at: one stage of a run, as the run directory tells it.

Contract: reads files, never the trainer, and may be used while a trainer writes. Completions are read when a disease
asks for them, and then a few steps of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from groupwise.doctor.finding import Change, Finding, Severity
from groupwise.doctor.series import Point
from groupwise.doctor.text_signs import TextSigns, read_signs
from groupwise.runs import Run, RunReadError, layout
from groupwise.types import EvalRecord, StepRecord

SAMPLED_STEPS = 8
"""Steps of a stage whose completions are read: enough to tell what lasts from what happened once."""


@dataclass(frozen=True)
class StageHistory:
    stage: str
    index: int
    """Of the stage in the recipe."""
    steps: tuple[StepRecord, ...]
    """Of this stage."""
    evals: tuple[EvalRecord, ...]
    """Of the whole run: what was before the stage is what it is compared with."""
    recipe: Mapping[str, Any]
    """As written; {} where it is lost."""
    info: Mapping[str, Any]
    look_at_texts: Callable[[], tuple[TextSigns, ...]]

    @cached_property
    def signs(self) -> tuple[TextSigns, ...]:
        """Of the completions of a few steps, in order."""
        return self.look_at_texts()

    @property
    def table(self) -> Mapping[str, Any]:
        """The stage's own table of the recipe."""
        stages = self.recipe.get("stages", ())
        return stages[self.index] if self.index < len(stages) else {}

    @property
    def begins_at_start(self) -> bool:
        """Whether the first steps of the stage are here; a window of a long one lacks them."""
        return bool(self.steps) and self.steps[0].stage_step == 1

    @property
    def planned_steps(self) -> int:
        return int(self.table.get("steps", len(self.steps)))

    def series(self, name: str) -> list[Point]:
        """The steps that have this metric, with it; what is not finite is left out."""
        points = ((record.step, record.metrics.get(name, math.nan)) for record in self.steps)
        return [(step, value) for step, value in points if math.isfinite(value)]

    def setting(self, key: str, default: Any) -> Any:
        """A key of the stage by its path, as in "sampling.max_new_tokens"."""
        return _look_up(self.table, key, default)

    def run_setting(self, key: str, default: Any) -> Any:
        """A key of the recipe outside of its stages."""
        return _look_up(self.recipe, key, default)

    def stage_key(self, key: str) -> str:
        return f"stages.{self.index}.{key}"

    def change(self, key: str, value: Any, advice: str) -> Change:
        """Of one of the stage's keys."""
        return Change(advice, self.stage_key(key), value)

    def slower(self, advice: str) -> Change:
        """Half the learning rate."""
        return self.change("optimizer.learning_rate", self.setting("optimizer.learning_rate", 1e-6) / 2, advice)

    def finding(
        self,
        disease: str,
        severity: Severity,
        points: Sequence[Point],
        *,
        seen: str,
        means: str,
        change: Change,
        figures: Mapping[str, float],
    ) -> Finding:
        """Over the steps of `points`."""
        return Finding(disease, severity, self.stage, points[0][0], points[-1][0], seen, means, change, figures)


def read_charts(run: Run) -> tuple[StageHistory, ...]:
    """One for each stage that has begun."""
    steps, evals = run.steps(), tuple(run.evals())
    recipe, info = _recipe_of(run), _info_of(run)
    if not (steps or evals or recipe):
        raise RunReadError(f"{run.path} is no run: it has no {layout.RECIPE} and no {layout.METRICS}")
    kept = run.rollout_steps()
    charts = []
    for name in dict.fromkeys(record.stage for record in steps):
        members = tuple(record for record in steps if record.stage == name)
        sample = _spread([step for step in kept if members[0].step <= step <= members[-1].step], SAMPLED_STEPS)
        charts.append(make_chart(name, members, evals, recipe, info, _reader(run, sample)))
    return tuple(charts)


def make_chart(
    stage: str,
    steps: tuple[StepRecord, ...],
    evals: tuple[EvalRecord, ...],
    recipe: Mapping[str, Any],
    info: Mapping[str, Any],
    look_at_texts: Callable[[], tuple[TextSigns, ...]],
) -> StageHistory:
    names = [table.get("name") or table.get("algorithm") for table in recipe.get("stages", ())]
    index = names.index(stage) if stage in names else 0
    return StageHistory(stage, index, steps, evals, recipe, info, look_at_texts)


def _recipe_of(run: Run) -> dict[str, Any]:
    return run.recipe if (run.path / layout.RECIPE).is_file() else {}


def _info_of(run: Run) -> dict[str, Any]:
    return run.info if (run.path / layout.INFO).is_file() else {}


def _reader(run: Run, steps: list[int]) -> Callable[[], tuple[TextSigns, ...]]:
    return lambda: tuple(sign for step in steps if (sign := read_signs(run, step)))


def _spread(items: list[int], count: int) -> list[int]:
    """At most `count` of them, evenly, the first and the last among them."""
    if len(items) <= count:
        return items
    return [items[round(number * (len(items) - 1) / (count - 1))] for number in range(count)]


def _look_up(table: Mapping[str, Any], key: str, default: Any) -> Any:
    found: Any = table
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return default
        found = found[part]
    return found
