"""Reader of run directories; reports, the dashboard, the doctor and sweeps are built on it.

Contract: reads only, takes no lock, and may be used while a trainer writes: an unfinished line is left out. Each call
reads the files again. A damaged line raises a `RunReadError` with file and line. A missing file gives an empty answer,
except for the recipe and the info, which every run has from the start.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from groupwise.base.harmless import escape
from groupwise.base.outside import file_text, json_value, toml_table
from groupwise.base.text_layout import percent
from groupwise.config import ConfigError
from groupwise.runs import layout
from groupwise.runs.files import RunReadError, read_records, reading
from groupwise.runs.records import eval_from_json, event_from_json, group_from_json, step_from_json, trace_from_json
from groupwise.runs.tables import INFO_KEYS, RECIPE_KEYS
from groupwise.runs.typed import typed
from groupwise.types import EvalRecord, GroupTrace, ScoredGroup, StepRecord

if TYPE_CHECKING:
    from groupwise.runs.curves import CurvesFigure

TURNS = ("started", "resumed", "finished", "stopped", "rank_lost", "failed")
"""Kinds of events with which a trainer begins or ends."""
MAY_DIFFER = ("seed", "name", "description", "logging", "checkpoints")
"""Keys of a recipe that may differ within one experiment."""


class HasRecipe(Protocol):
    @property
    def recipe(self) -> Mapping[str, Any]: ...


R = TypeVar("R", bound=HasRecipe)
T = TypeVar("T")
U = TypeVar("U")


def last_turn(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the newest event with which a trainer began or ended; {} when there is none."""
    return next((event for event in reversed(events) if event.get("kind") in TURNS), {})


class Run:
    """A run directory: its recipe, metrics, evaluations, events and rollouts."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        if not os.path.isdir(self.path):
            raise RunReadError(f"no run at {self.path}")
        if os.path.isfile(self.path / layout.SWEEP):
            raise RunReadError(
                f"{self.path} is a sweep and not a run: `groupwise sweep {self.path} --analyse-only` reads all of it, "
                f"and its runs are in {self.path / layout.SWEEP_RUNS}"
            )

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe's table, as written."""
        with reading(self.path / layout.RECIPE):
            return cast(dict[str, Any], typed(RECIPE_KEYS, toml_table(self._text(layout.RECIPE))))

    @property
    def info(self) -> dict[str, Any]:
        """The content of run.json: versions, machine, fingerprint …"""
        with reading(self.path / layout.INFO):
            return cast(dict[str, Any], typed(INFO_KEYS, json_value(self._text(layout.INFO))))

    @property
    def recipe_text(self) -> str:
        """The recipe's text; "" if the file is missing."""
        with reading(self.path / layout.RECIPE):
            return self._text(layout.RECIPE) if os.path.lexists(self.path / layout.RECIPE) else ""

    @property
    def recipe_if_any(self) -> dict[str, Any]:
        """The recipe's table; {} if the file is missing."""
        return self.recipe if os.path.lexists(self.path / layout.RECIPE) else {}

    @property
    def info_if_any(self) -> dict[str, Any]:
        """The content of run.json; {} if the file is missing."""
        return self.info if os.path.lexists(self.path / layout.INFO) else {}

    def steps(self) -> list[StepRecord]:
        return read_records(self.path / layout.METRICS, step_from_json)

    def evals(self) -> list[EvalRecord]:
        return read_records(self.path / layout.EVALS, eval_from_json)

    def events(self) -> list[dict[str, Any]]:
        return read_records(self.path / layout.EVENTS, event_from_json)

    def metrics(self) -> Any:
        """All metrics as columns, with `step` and `stage`: a pandas frame if pandas is installed, else a dict of lists.

        A value that a step does not have is NaN.
        """
        records = self.steps()
        names = sorted({name for record in records for name in record.metrics})
        columns: dict[str, list[Any]] = {
            "step": [record.step for record in records],
            "stage": [record.stage for record in records],
            **{name: [record.metrics.get(name, math.nan) for record in records] for name in names},
        }
        try:
            import pandas
        except ImportError:
            return columns
        return pandas.DataFrame(columns)

    @property
    def status(self) -> str:
        """The status: "started", "resumed", "finished", "stopped", "rank_lost" or "failed"; "" before the start."""
        return str(last_turn(self.events()).get("kind", ""))

    def plot(self) -> CurvesFigure:
        """Draw training reward and held-out pass@1 over the steps, as a matplotlib figure."""
        from groupwise.runs.curves import draw_curves

        return draw_curves(self)

    def __repr__(self) -> str:
        return f"<Run {self.path}: {self._summary()}>"

    def _repr_html_(self) -> str:
        """The run as a notebook shows it."""
        return f"<b>{escape(self.name)}</b>: {escape(self._summary())}<br><code>{escape(str(self.path))}</code>"

    def _summary(self) -> str:
        steps, evals = self.steps(), self.evals()
        count = f"{steps[-1].step} steps" if steps else "no steps yet"
        if not evals:
            return f"{self.status or 'not started'}, {count}, not evaluated"
        first, last = evals[0], evals[-1]
        return (
            f"{self.status}, {count}, held-out pass@1 {percent(first.pass_at_1)} → {percent(last.pass_at_1)} "
            f"(95 % interval {percent(last.low)} to {percent(last.high)})"
        )

    def rollouts(self, step: int | None = None) -> list[ScoredGroup]:
        """The training groups of a step, by default the newest whose groups were kept; [] when none were kept."""
        if step is None:
            step = max(self.rollout_steps(), default=0)
        return read_records(self.path / layout.ROLLOUTS / layout.rollout_file(step), group_from_json)

    def tokens(self, step: int) -> list[GroupTrace]:
        """What a step did to each token, for the first groups of `rollouts(step)`; [] when that was not kept."""
        return read_records(self.path / layout.TOKENS / layout.rollout_file(step), trace_from_json)

    def eval_rollouts(self, step: int) -> list[ScoredGroup]:
        """The held-out groups of the eval after a step; [] when none were kept."""
        return read_records(self.path / layout.EVAL_ROLLOUTS / layout.rollout_file(step), group_from_json)

    def rollout_steps(self) -> list[int]:
        """The steps whose rollouts were kept, in order."""
        return self._steps_in(layout.ROLLOUTS)

    def token_steps(self) -> list[int]:
        return self._steps_in(layout.TOKENS)

    def eval_rollout_steps(self) -> list[int]:
        return self._steps_in(layout.EVAL_ROLLOUTS)

    def _steps_in(self, folder: str) -> list[int]:
        with reading(self.path / folder):
            try:
                names = os.listdir(self.path / folder)
            except FileNotFoundError:
                return []
        return sorted(step for step in map(layout.rollout_step, names) if step is not None)

    def _text(self, name: str) -> str:
        try:
            return file_text(self.path / name)
        except FileNotFoundError:
            raise RunReadError(f"{self.path} has no {name}: is it a run directory?") from None


def read_each(items: Iterable[T], read: Callable[[T], U]) -> tuple[list[U], list[str]]:
    """Return what `read` makes of each item, and the errors of those that it refuses; raise one if it refuses all."""
    found: list[U] = []
    errors: list[RunReadError | ConfigError] = []
    for item in items:
        try:
            found.append(read(item))
        except (RunReadError, ConfigError) as error:
            errors.append(error)
    if errors and not found:
        raise errors[0]
    return found, list(map(str, errors))


def by_experiment(runs: Iterable[R]) -> list[list[R]]:
    """Group the runs that differ only in seed, name, logging and checkpoints; the order given is kept."""
    alike: dict[str, list[R]] = {}
    for run in runs:
        kept = {key: value for key, value in run.recipe.items() if key not in MAY_DIFFER}
        mark = json.dumps(_without_empty_tables(kept), sort_keys=True, default=str)
        alike.setdefault(mark, []).append(run)
    return list(alike.values())


def _without_empty_tables(value: Any) -> Any:
    """Drop empty tables: they set nothing, and an older groupwise may not have written them."""
    if isinstance(value, Mapping):
        kept = {key: _without_empty_tables(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item != {}}
    return [_without_empty_tables(item) for item in value] if isinstance(value, list) else value
