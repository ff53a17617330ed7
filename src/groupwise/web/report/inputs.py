"""The inputs of a report: run directories and the result folders of `groupwise eval`, read once.

Contract: reads files, writes nothing, never loads a model. A run that is unfinished, saved no rollouts or has no
evaluation is not an error: `RunSource.gaps` says what is missing. A run with a damaged file is left out, and
`Sources.errors` names file and line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from groupwise.runs import layout
from groupwise.runs.files import RunReadError
from groupwise.runs.reader import Run, last_turn, read_each
from groupwise.runs.records import by_stage
from groupwise.runs.results import RESULT, Result, is_result, read_groups, read_result
from groupwise.types import EvalRecord, ScoredGroup, StepRecord
from groupwise.web.report.digest import Digest, digest_rollouts


@dataclass(frozen=True, slots=True)
class CompletionPanel:
    """A model's completions by problem id, in evaluation order."""

    source: str
    """The label of the run or the result."""
    moment: str
    """The checkpoint of a run: "before training", "step 120 (best)", "step 200"; "" for a result."""
    step: int | None
    groups: Mapping[str, ScoredGroup]


@dataclass(frozen=True, slots=True)
class RunSource:
    label: str
    path: Path
    recipe: Mapping[str, Any]
    recipe_text: str
    info: Mapping[str, Any]
    steps: tuple[StepRecord, ...]
    evals: tuple[EvalRecord, ...]
    events: tuple[Mapping[str, Any], ...]
    panels: tuple[CompletionPanel, ...]
    """First, best and last evaluation, if they differ and their completions were saved."""
    digest: Digest
    gaps: tuple[str, ...]

    @property
    def best_eval(self) -> EvalRecord | None:
        """The first evaluation with the highest held-out pass@1; the checkpoint `best` is chosen the same way."""
        known = [record for record in self.evals if record.pass_at_1 == record.pass_at_1]
        return max(known, key=lambda record: record.pass_at_1, default=None)

    @property
    def end_panels(self) -> tuple[CompletionPanel, CompletionPanel] | None:
        """The panels of the first and the last evaluation; None unless both were saved."""
        panels = {panel.step: panel for panel in self.panels}
        steps = {record.step for record in (*self.evals[:1], *self.evals[-1:])}
        if len(steps) < 2 or not steps <= panels.keys():
            return None
        return panels[min(steps)], panels[max(steps)]

    @property
    def stages(self) -> tuple[tuple[str, int, int], ...]:
        return stage_spans(self.steps)

    @property
    def moments(self) -> dict[int, str]:
        """Step and name of the first, best and last evaluation."""
        best = self.best_eval
        steps = {record.step for record in (*self.evals[:1], *self.evals[-1:], *([best] if best else []))}
        names = {step: f"step {step}" if step else "before training" for step in sorted(steps)}
        return names | ({best.step: f"step {best.step} (best)"} if best and best.step else {})


@dataclass(frozen=True, slots=True)
class ResultSource:
    label: str
    result: Result
    panel: CompletionPanel


@dataclass(frozen=True, slots=True)
class Sources:
    runs: tuple[RunSource, ...]
    results: tuple[ResultSource, ...]
    errors: tuple[str, ...] = ()
    """Of runs and results that cannot be read and are left out."""


def read_sources(paths: Sequence[Path]) -> Sources:
    """Read runs and results in the given order. Folders with the same name get distinct labels."""

    def read(labelled: tuple[Path, str]) -> RunSource | ResultSource:
        return _read_result(*labelled) if is_result(labelled[0]) else _read_run(*labelled)

    found, errors = read_each(zip(paths, _labels(paths), strict=True), read)
    runs = tuple(source for source in found if isinstance(source, RunSource))
    return Sources(runs, tuple(source for source in found if isinstance(source, ResultSource)), tuple(errors))


def stage_spans(steps: Iterable[StepRecord]) -> tuple[tuple[str, int, int], ...]:
    """Return (name, first step, last step) of each stage that has started."""
    return tuple((name, members[0].step, members[-1].step) for name, members in by_stage(steps).items())


def _labels(paths: Sequence[Path]) -> list[str]:
    names = [path.resolve().name for path in paths]
    longer = ["/".join(path.resolve().parts[-2:]) for path in paths]
    labels = [long if names.count(name) > 1 else name for name, long in zip(names, longer, strict=True)]
    return [f"{label} ({number})" if labels.count(label) > 1 else label for number, label in enumerate(labels, start=1)]


def _read_run(path: Path, label: str) -> RunSource:
    run = Run(path)
    files = (layout.RECIPE, layout.METRICS, layout.EVALS)
    if not any(os.path.lexists(path / name) for name in files):
        raise RunReadError(f"{path} is neither a run (no {', no '.join(files)}) nor an evaluation result (no {RESULT})")
    source = RunSource(
        label=label,
        path=path,
        recipe=run.recipe_if_any,
        recipe_text=run.recipe_text,
        info=run.info_if_any,
        steps=tuple(run.steps()),
        evals=tuple(run.evals()),
        events=tuple(run.events()),
        panels=(),
        digest=digest_rollouts((step, run.rollouts(step)) for step in run.rollout_steps()),
        gaps=(),
    )
    return replace(source, panels=_panels(source, run), gaps=_gaps(source, run))


def _panels(source: RunSource, run: Run) -> tuple[CompletionPanel, ...]:
    kept = set(run.eval_rollout_steps())
    panels = []
    for step, moment in source.moments.items():
        if step in kept:
            groups = {scored.group.prompt.problem.id: scored for scored in run.eval_rollouts(step)}
            panels.append(CompletionPanel(source.label, moment, step, groups))
    return tuple(panels)


def _gaps(source: RunSource, run: Run) -> tuple[str, ...]:
    gaps = []
    done = source.steps[-1].step if source.steps else 0
    planned = sum(int(stage.get("steps", 0)) for stage in source.recipe.get("stages", []))
    if last_turn(source.events).get("kind") != "finished":
        of = f" of {planned:,}" if planned else ""
        gaps.append(f"The run is not marked as finished: {done:,}{of} steps are recorded.")
    if not source.recipe_text:
        gaps.append("recipe.toml is missing: the recipe is not shown.")
    if not source.info:
        gaps.append("run.json is missing: machine, versions and fingerprint are not shown.")
    if not source.evals:
        gaps.append("There is no held-out evaluation, so it is unknown whether the model got better.")
    elif missing := {source.evals[0].step, source.evals[-1].step} - set(run.eval_rollout_steps()):
        steps = " and ".join(str(step) for step in sorted(missing))
        gaps.append(f"The held-out completions of the evaluation at step {steps} were not saved.")
    has_rl = any("reward/mean" in record.metrics for record in source.steps)
    if has_rl and not source.digest.steps:
        gaps.append("No training rollouts were saved: signs of reasoning and lengths by verdict are not shown.")
    elif has_rl:
        num_rl = sum("reward/mean" in record.metrics for record in source.steps)
        if len(source.digest.steps) < num_rl:
            gaps.append(f"Rollouts were saved for {len(source.digest.steps):,} of {num_rl:,} steps.")
    return tuple(gaps)


def _read_result(path: Path, label: str) -> ResultSource:
    groups = {scored.group.prompt.problem.id: scored for scored in read_groups(path)}
    return ResultSource(label, read_result(path), CompletionPanel(label, "", None, groups))
