"""`groupwise compare`: two results on the same problems, paired by problem. It reads files and never loads a model.

A side is a result folder of `groupwise eval`, or a run directory: the held-out completions of its newest evaluation, or
of the one after STEP with RUN@STEP. Sides with different problems or verifiers are refused. Sides with different
sampling settings are compared, and the difference is noted.

Each problem has one value per side: the share of its completions that are correct. Problems that one side lacks or
could not judge are left out and counted. The interval of the mean difference is over problems
(`stats.paired_interval`). With one completion per problem on both sides the test is McNemar's, else a paired bootstrap.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.base.json_values import plain
from groupwise.base.stats import mcnemar_p, mean, paired_bootstrap_p, paired_interval
from groupwise.base.text_layout import points, shortened
from groupwise.config import ConfigError
from groupwise.runs import RunReadError, layout
from groupwise.runs.reader import Run
from groupwise.runs.results import Scores, is_result, read_groups, read_result
from groupwise.types import Problem, ScoredGroup

WHERE_DATA_IS = frozenset({"train", "held_out", "hub_config", "train_split", "held_out_split", "source"})
"""Task options that locate the data. They may differ, because the problems themselves are compared."""
CLEAR_SHARE = 0.5
"""A problem counts as solved if more than this share of its completions is correct."""


@dataclass(frozen=True)
class Side:
    name: str
    task: str
    options: Mapping[str, Any]
    verifier: str
    data: str | None
    """Fingerprint of the whole split; None for a run."""
    sampling: Mapping[str, Any]
    groups: Mapping[str, ScoredGroup]
    scores: Scores
    """Scores of the result; empty for a run."""


@dataclass(frozen=True, slots=True)
class Flip:
    problem_id: str
    before: float
    after: float
    question: str


@dataclass(frozen=True, slots=True)
class Comparison:
    first: str
    second: str
    num_problems: int
    left_out: int
    """Problems that are missing on one side or could not be judged there."""
    first_value: float
    """pass@1 on the shared problems."""
    second_value: float
    difference: float
    low: float
    high: float
    p: float
    test: str
    """mcnemar or paired_bootstrap."""
    gained: tuple[Flip, ...]
    """Solved only by the second."""
    lost: tuple[Flip, ...]
    """Solved only by the first."""
    scores: Mapping[str, tuple[float, float]]
    """All scores that both results have, each over its own problems, to see what else changed."""
    notes: tuple[str, ...]
    """Differences in sampling settings."""

    @property
    def verdict(self) -> str:
        """The result as a sentence."""
        if self.low > 0:
            found = f"{self.second} is better than {self.first}"
        elif self.high < 0:
            found = f"{self.second} is worse than {self.first}"
        else:
            found = f"no clear difference between {self.first} and {self.second}"
        change = f"{points(self.difference)} points, 95 % interval {points(self.low)} to {points(self.high)}"
        return f"{found}: {change}, on {self.num_problems:,} problems"

    def to_json(self) -> dict[str, Any]:
        return dict(plain(self)) | {"verdict": self.verdict}


def read_side(named: str) -> Side:
    path = Path(named)
    if is_result(path):
        result = read_result(path)
        if not result.is_finished:
            raise ConfigError(f"{path}: the evaluation is not finished; run the same `groupwise eval` command again")
        name, options = str(result.task["name"]), result.task["options"]
        data = str(result.data["fingerprint"])
        groups = _by_id(read_groups(path))
        return Side(str(path), name, options, result.verifier, data, result.sampling, groups, result.scores)
    folder, _, step = named.rpartition("@")
    if not path.is_dir() and folder and step.isdecimal():
        return _read_run(Path(folder), int(step))
    if os.path.lexists(path / layout.RECIPE):
        return _read_run(path, None)
    raise ConfigError(f"{named}: neither a result of `groupwise eval` nor a run directory (or RUN@STEP)")


def _read_run(path: Path, step: int | None) -> Side:
    run = Run(path)
    steps = run.eval_rollout_steps()
    if not steps or (step is not None and step not in steps):
        known = f"evaluated after steps {', '.join(map(str, steps))}" if steps else "never evaluated"
        raise ConfigError(f"{path}{'' if step is None else f'@{step}'}: no such evaluation; the run was {known}")
    chosen = steps[-1] if step is None else step
    recipe, evaluation = run.recipe, run.recipe.get("evaluation", {})
    sampling = {
        "n": evaluation.get("rollouts_per_problem", 1),
        "temperature": evaluation.get("temperature", 0.0),
        "max_new_tokens": evaluation.get("max_new_tokens", 0),
    }
    task = recipe.get("task", {})
    # A process score rates the reasoning; it does not decide what is correct.
    verifier = run.info.get("verifier", "").partition(" + ")[0]
    if "name" not in task or not verifier:
        raise RunReadError(f"{path}: {layout.RECIPE} names no task, or {layout.INFO} no verifier")
    groups = _by_id(run.eval_rollouts(chosen))
    return Side(f"{path}@{chosen}", task["name"], task.get("options", {}), verifier, None, sampling, groups, {})


def _by_id(groups: Sequence[ScoredGroup]) -> dict[str, ScoredGroup]:
    return {scored.group.prompt.problem.id: scored for scored in groups}


def compare(first: Side, second: Side) -> Comparison:
    refuse_different(first, second)
    shared = sorted(first.groups.keys() & second.groups.keys())
    shares = {key: (first.groups[key].pass_rate, second.groups[key].pass_rate) for key in shared}
    judged = {key: (a, b) for key, (a, b) in shares.items() if a is not None and b is not None}
    if not judged:
        raise ConfigError(f"{first.name} and {second.name} share no judged problem; nothing to compare")
    differences = [b - a for a, b in judged.values()]
    low, high = paired_interval(differences)
    flips = _flips(judged, first.groups)
    gained = tuple(flip for flip in flips if flip.after > flip.before)
    lost = tuple(flip for flip in flips if flip.after < flip.before)
    both = [name for name in first.scores if name in second.scores]
    is_plain = all(len(side.groups[key].scores) == 1 for side in (first, second) for key in judged)
    return Comparison(
        first=first.name,
        second=second.name,
        num_problems=len(judged),
        left_out=len(first.groups.keys() | second.groups.keys()) - len(judged),
        first_value=mean([a for a, _ in judged.values()]),
        second_value=mean([b for _, b in judged.values()]),
        difference=mean(differences),
        low=low,
        high=high,
        p=mcnemar_p(len(gained), len(lost)) if is_plain else paired_bootstrap_p(differences),
        test="mcnemar" if is_plain else "paired_bootstrap",
        gained=gained,
        lost=lost,
        scores={name: (first.scores[name].value, second.scores[name].value) for name in both},
        notes=_notes(first, second),
    )


def refuse_different(first: Side, second: Side) -> None:
    """Raise a ConfigError if a difference in scores would not be a difference between models."""

    def refuse(what: str, one: Any, other: Any) -> ConfigError:
        return ConfigError(
            f"cannot compare {first.name} and {second.name}: {what} {one!r:.80} and {other!r:.80}; evaluate both "
            "in the same way"
        )

    if first.task != second.task:
        raise refuse("their tasks are", first.task, second.task)
    if first.verifier != second.verifier:
        raise refuse("their verifiers are", first.verifier, second.verifier)
    for key in sorted((first.options.keys() | second.options.keys()) - WHERE_DATA_IS):
        one, other = first.options.get(key), second.options.get(key)
        if one != other:
            raise refuse(f"their task option {key} is", one, other)
    if first.data is not None and second.data is not None and first.data != second.data:
        raise refuse("their data differ; the fingerprints are", first.data, second.data)
    for key in first.groups.keys() & second.groups.keys():
        one, other = (side.groups[key].group.prompt.problem for side in (first, second))
        if (one.messages, one.answer) != (other.messages, other.answer):
            raise refuse(f"problem {key} is not the same on both sides:", _question(one), _question(other))


def _flips(judged: Mapping[str, tuple[float, float]], groups: Mapping[str, ScoredGroup]) -> list[Flip]:
    """Return the problems that only one side solves, largest changes first."""
    flips = [
        Flip(key, before, after, _question(groups[key].group.prompt.problem))
        for key, (before, after) in judged.items()
        if (before > CLEAR_SHARE) != (after > CLEAR_SHARE)
    ]
    return sorted(flips, key=lambda flip: (-abs(flip.after - flip.before), flip.problem_id))


def _notes(first: Side, second: Side) -> tuple[str, ...]:
    one, other = first.sampling, second.sampling
    return tuple(
        f"{key} is {one[key]} for {first.name} and {other[key]} for {second.name}"
        for key in sorted((one.keys() & other.keys()) - {"seed"})
        if one[key] != other[key]
    )


def _question(problem: Problem) -> str:
    return shortened(problem.question, 120) or problem.id
