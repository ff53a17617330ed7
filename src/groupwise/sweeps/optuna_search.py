"""`[search]`: Optuna proposes arms from the results of earlier ones.

Contract: trials are ordinary arms in sweep.json, so the same command resumes a search: finished trials go into a
new study, and the sampler continues from its seed and the number of trials. A trial whose recipe is not valid, or was
tried before, is reported to Optuna and not run. Optuna is an extra and is imported only for a search.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from groupwise.base.json_values import plain
from groupwise.base.stats import mean
from groupwise.config import ConfigError, nearest
from groupwise.runs.catalogue import METRICS
from groupwise.runs.files import RunReadError
from groupwise.runs.reader import Run
from groupwise.sweeps.arm_scores import tail_values
from groupwise.sweeps.arms import label_of
from groupwise.sweeps.folder import SweepJob, earlier_sweep, jobs_of, prepare, write
from groupwise.sweeps.run_jobs import JobProgress, JobRunner, StopSwitch
from groupwise.sweeps.spec import HELD_OUT, RangeSpec, SearchSpec
from groupwise.sweeps.sweep_records import Arm, Knob, Sweep

MAX_REFUSALS = 100
"""Consecutive proposals that cannot be run before the ranges count as exhausted."""
KNOB = "trials"


@dataclass(frozen=True, slots=True)
class SearchResult:
    sweep: Sweep
    runs: tuple[JobProgress, ...]
    best: Arm | None
    """Best arm by the mean objective over seeds; None until a trial has finished."""
    best_value: float | None
    end: str = ""
    """Why there are fewer trials than requested; "" if there are not."""


def check_search(search: SearchSpec, sweep: Sweep) -> None:
    """Check before the first trial: the objective, the package, and the ends of each range."""
    known = [HELD_OUT, *(name for name in METRICS if not name.startswith("eval/"))]
    if search.objective not in known:
        raise ConfigError(f"search.objective = {search.objective!r}: {nearest(search.objective, known)}")
    load_optuna()
    for one in search.ranges:
        for value in one.choices or (one.low, one.high):
            settings = dict.fromkeys(one.all_keys, value)
            sweep.recipe(Arm(f"{one.name} = {label_of(value)}", settings=settings))


def load_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ConfigError("[search]: needs Optuna; install it with: pip install 'groupwise[sweep]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def run_search(
    search: SearchSpec, sweep: Sweep, folder: Path, runner: JobRunner, stop: StopSwitch, num_at_once: int = 1
) -> SearchResult:
    """Run trials until there are enough. `sweep` has no arms: earlier trials are read from the folder."""
    earlier = earlier_sweep(folder)
    sweep = _with_arms(sweep, search, () if earlier is None else earlier.arms)
    prepare(sweep, folder)
    runs = runner.run(jobs_of(sweep, folder, sweep.arms))
    end = ""
    while len(sweep.arms) < search.trials and not stop.is_on:
        wanted = min(search.trials - len(sweep.arms), max(1, num_at_once // len(sweep.seeds)))
        new, refusal = propose(search, sweep, values_of(search, runs), wanted)
        if new:
            sweep = _with_arms(sweep, search, (*sweep.arms, *new))
            write(sweep, folder)
            runs = [*runs, *runner.run(jobs_of(sweep, folder, new))]
        if refusal:
            end = f"the search stops after {len(sweep.arms)} trials: {refusal}"
            break
    values = values_of(search, runs)
    choose = max if search.direction == "maximize" else min
    known = [arm for arm in sweep.arms if arm.name in values]
    best = choose(known, key=lambda arm: values[arm.name], default=None)
    return SearchResult(sweep, tuple(runs), best, None if best is None else values[best.name], end)


def _with_arms(sweep: Sweep, search: SearchSpec, arms: Sequence[Arm]) -> Sweep:
    keys = tuple(dict.fromkeys(key for one in search.ranges for key in one.all_keys))
    return replace(sweep, arms=tuple(arms), knobs=(Knob(KNOB, keys, tuple(arms)),))


def propose(search: SearchSpec, sweep: Sweep, values: Mapping[str, float], wanted: int) -> tuple[list[Arm], str]:
    """Return new arms, and why they are fewer than wanted ("" if they are not)."""
    optuna = load_optuna()
    distributions = {one.name: _distribution(one, optuna) for one in search.ranges}
    study = optuna.create_study(
        direction=search.direction, sampler=optuna.samplers.TPESampler(seed=search.seed + len(sweep.arms))
    )
    seen: dict[str, float | None] = {}
    for arm in sweep.arms:
        value = values.get(arm.name)
        seen[_identity(arm.settings)] = value
        state = optuna.trial.TrialState.FAIL if value is None else optuna.trial.TrialState.COMPLETE
        params = {one.name: arm.settings.get(one.all_keys[0]) for one in search.ranges}
        try:
            study.add_trial(
                optuna.trial.create_trial(state=state, params=params, distributions=distributions, value=value)
            )
        except ValueError as error:
            raise ConfigError(
                f"search.ranges: {arm.name} ({arm.label}) is outside them: {error}; undo the change of the ranges, "
                "or use another --dir"
            ) from None
    new: list[Arm] = []
    refusal, num_refused = "", 0
    while len(new) < wanted and num_refused < MAX_REFUSALS:
        trial = study.ask(distributions)
        settings = {key: trial.params[one.name] for one in search.ranges for key in one.all_keys}
        label = ", ".join(f"{one.name} {label_of(trial.params[one.name])}" for one in search.ranges)
        arm = Arm(f"trial-{len(sweep.arms) + len(new):03d}", label, KNOB, label, settings)
        refusal = _refusal(arm, sweep, seen)
        if refusal:
            num_refused += 1
            known = seen.get(_identity(settings))
            study.tell(trial, known, state=None if known is not None else optuna.trial.TrialState.FAIL)
            continue
        seen[_identity(settings)] = None
        new.append(arm)
        num_refused = 0
    return new, refusal


def _refusal(arm: Arm, sweep: Sweep, seen: Mapping[str, float | None]) -> str:
    if _identity(arm.settings) in seen:
        return "Optuna proposes only values that were tried before"
    try:
        sweep.recipe(arm)
    except ConfigError as error:
        return f"Optuna proposes values that cannot be run: {error}"
    return ""


def _identity(settings: Mapping[str, Any]) -> str:
    return repr(sorted((key, plain(value, str)) for key, value in settings.items()))


def _distribution(one: RangeSpec, optuna: Any) -> Any:
    if one.choices:
        return optuna.distributions.CategoricalDistribution(list(one.choices))
    if all(isinstance(value, int) for value in (one.low, one.high, one.step or 1)):
        return optuna.distributions.IntDistribution(one.low, one.high, log=one.log, step=one.step or 1)
    return optuna.distributions.FloatDistribution(one.low, one.high, log=one.log, step=one.step)


def values_of(search: SearchSpec, runs: Sequence[JobProgress]) -> dict[str, float]:
    """Return arm → mean objective over seeds, for arms whose seeds have all finished."""
    by_arm: dict[str, list[float | None]] = {}
    for run in runs:
        value = objective_of(run.job, search.objective) if run.status == "finished" else None
        by_arm.setdefault(run.job.arm.name, []).append(value)
    means = {}
    for name, values in by_arm.items():
        known = [value for value in values if value is not None and math.isfinite(value)]
        if len(known) == len(values):
            means[name] = mean(known)
    return means


def objective_of(job: SweepJob, objective: str) -> float | None:
    if objective == HELD_OUT:
        return job.score
    try:
        steps = Run(job.run_dir).steps()
    except RunReadError:
        return None
    values = tail_values(steps, objective)
    return mean(values) if values else None
