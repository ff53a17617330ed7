"""What a check gets and returns: the history of one stage, read from the run directory, and a finding.

Contract: reads files, never the trainer, and may be used while a trainer writes. Completions are read only when a check
asks for them, and then only those of a few steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any, Literal

from groupwise.doctor.series import Point, has_risen, middle
from groupwise.doctor.text_signs import TextSigns, read_signs
from groupwise.runs import Run, RunReadError, layout
from groupwise.runs.records import by_stage, has_no_gradient
from groupwise.types import EvalRecord, StepRecord

SAMPLED_STEPS = 8
"""Number of steps whose completions are read: enough to tell a lasting sign from a single one."""
RECENT_STEPS = 20
"""Long enough not to be noise, and short enough to be seen before much of a run is lost."""
SOLVED = 0.9
"""A policy that is right nine times in ten has little left to differ about: equal rewards are then expected."""

Severity = Literal["problem", "warning"]
"""`problem`: the run learns the wrong thing, or next to nothing; stop it and make the change. `warning`: the run can
continue, but something is wasted or may go wrong."""


@dataclass(frozen=True, slots=True)
class Change:
    """The fix that a finding proposes."""

    advice: str
    """One sentence; it says what to do when the key does not help."""
    key: str = ""
    """A key of the recipe, as `--set` takes it; "" when no key helps."""
    value: Any = None


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    stage: str
    first_step: int
    last_step: int
    seen: str
    """The evidence: a sentence with figures."""
    means: str
    change: Change
    figures: Mapping[str, float]
    """The numbers in `seen`, by metric or by name."""
    check: str = ""
    """A name in CHECKS, filled in by `examine`."""

    def to_json(self) -> dict[str, Any]:
        return {"check": self.check, **asdict(self)}


@dataclass(frozen=True)
class StageHistory:
    name: str
    steps: tuple[StepRecord, ...]
    evals: tuple[EvalRecord, ...]
    """Those of the whole run: a stage is compared with what came before it."""
    recipe: Mapping[str, Any]
    """As written; {} when it is lost."""
    info: Mapping[str, Any]
    look_at_texts: Callable[[], tuple[TextSigns, ...]]

    @cached_property
    def signs(self) -> tuple[TextSigns, ...]:
        """Signs in the completions of a few steps, in order."""
        return self.look_at_texts()

    @cached_property
    def index(self) -> int:
        """Position of the stage in the recipe."""
        names = [table.get("name") or table.get("algorithm") for table in self.recipe.get("stages", ())]
        return names.index(self.name) if self.name in names else 0

    @property
    def table(self) -> Mapping[str, Any]:
        """The stage's own table of the recipe."""
        stages = self.recipe.get("stages", ())
        return stages[self.index] if self.index < len(stages) else {}

    @property
    def begins_at_start(self) -> bool:
        """Whether the first step of the stage is here; a window on a long stage lacks it."""
        return bool(self.steps) and self.steps[0].stage_step == 1

    @cached_property
    def num_dead(self) -> int:
        """Number of steps that could not move the policy."""
        return sum(map(has_no_gradient, self.steps))

    @property
    def planned_steps(self) -> int:
        return int(self.table.get("steps", len(self.steps)))

    def series(self, name: str) -> list[Point]:
        """Return (step, value) of each step that has a finite value of this metric."""
        points = ((record.step, record.metrics.get(name, math.nan)) for record in self.steps)
        return [(step, value) for step, value in points if math.isfinite(value)]

    def recent(self, name: str) -> list[Point]:
        """Return the newest points of a series, at most RECENT_STEPS."""
        return self.series(name)[-RECENT_STEPS:]

    @property
    def is_solved(self) -> bool:
        recent = self.recent("score/pass_at_1")
        return bool(recent) and middle(recent) >= SOLVED

    @property
    def is_rising(self) -> bool:
        """Whether the policy is getting better; most signs are then not reported."""
        return has_risen(self.series("reward/mean")[-2 * RECENT_STEPS :])

    def setting(self, key: str, default: Any) -> Any:
        """Return the stage's value of a key given by its path, as in "sampling.max_new_tokens"."""
        return _look_up(self.table, key, default)

    def run_setting(self, key: str, default: Any) -> Any:
        """Return the recipe's value of a key outside its stages."""
        return _look_up(self.recipe, key, default)

    def change(self, key: str, value: Any, advice: str) -> Change:
        """Return the change of one of the stage's keys."""
        return Change(advice, f"stages.{self.index}.{key}", value)

    def slower(self, advice: str) -> Change:
        """Return the change to half the learning rate."""
        return self.change("optimizer.learning_rate", self.setting("optimizer.learning_rate", 1e-6) / 2, advice)

    def closer(self, advice: str) -> Change:
        """Return the change to a stronger KL term."""
        return self.change("kl.coefficient", 2 * self.setting("kl.coefficient", 0.0) or 0.04, advice)

    def finding(
        self,
        points: Sequence[Point],
        *,
        seen: str,
        means: str,
        change: Change,
        figures: Mapping[str, float],
        severity: Severity = "problem",
    ) -> Finding:
        """Return a finding over the steps of `points`."""
        return Finding(severity, self.name, points[0][0], points[-1][0], seen, means, change, figures)


def read_stages(run: Run) -> tuple[StageHistory, ...]:
    """Return one history for each stage that has begun."""
    steps, evals = run.steps(), tuple(run.evals())
    recipe, info = run.recipe_if_any, run.info_if_any
    if not (steps or evals or recipe):
        raise RunReadError(f"{run.path} is not a run: it has no {layout.RECIPE} and no {layout.METRICS}")
    kept = run.rollout_steps()
    stages = []
    for name, members in by_stage(steps).items():
        sample = _spread([step for step in kept if members[0].step <= step <= members[-1].step], SAMPLED_STEPS)
        stages.append(StageHistory(name, tuple(members), evals, recipe, info, partial(_read_texts, run, sample)))
    return tuple(stages)


def _read_texts(run: Run, steps: list[int]) -> tuple[TextSigns, ...]:
    return tuple(sign for step in steps if (sign := read_signs(run, step)))


def _spread(items: list[int], count: int) -> list[int]:
    """Return at most `count` items, evenly spaced, with the first and the last."""
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
