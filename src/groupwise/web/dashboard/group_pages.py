"""Groups of a run as JSON: a page of matching groups, and a single group with its tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from groupwise.base.json_values import finite_or_none, plain
from groupwise.base.outside import file_lines, json_value, open_file
from groupwise.runs import RunReadError, group_from_json, layout
from groupwise.runs.files import parse_object
from groupwise.runs.records import step_from_json, trace_from_json, trace_to_json
from groupwise.types import Finish, Rollout, Score, Verdict
from groupwise.web.dashboard.index import KINDS, FileIndex, Kind, nth_line, read_line, rollout_files
from groupwise.web.dashboard.library import Library, WatchedRun
from groupwise.web.dashboard.parameters import NotServed, ParameterError, Parameters
from groupwise.web.dashboard.recipes import read_recipe, stage_tables
from groupwise.web.dashboard.reward_terms import reward_terms
from groupwise.web.dashboard.text_search import SORTS, FoundGroup, Match, Sort, Wanted, find_match
from groupwise.web.report.sections.shown_completions import gold_text

FILTERS = (
    *("kind", "q", "problem", "verdict", "finish", "signal", "stage", "first_step", "last_step"),
    *("min_reward", "max_reward"),
)
"""Parameters that select groups; `verdict`, `finish` and `stage` may be repeated: any of the values."""
DEFAULT_LIMIT, MAX_LIMIT = 50, 500
WAIT_FOR_INDEX_S = 0.3
SEARCH_S = 1.5
"""Maximum time of a request for searching a text."""
MAX_WARNINGS = 5
_LISTED = (
    *("stage", "problem_id", "prompt", "answer", "verdicts", "finishes", "num_tokens"),
    *("has_signal", "mean_reward", "spread"),
)


def list_groups(_: Library, run: WatchedRun, parameters: Parameters) -> dict[str, Any]:
    parameters.allow(*FILTERS, "sort", "offset", "limit")
    wanted = _wanted(parameters)
    sort = cast(Sort, parameters.choice("sort", SORTS, "newest"))
    offset = parameters.whole("offset") or 0
    limit = parameters.whole("limit", largest=MAX_LIMIT)
    run.index.refresh(wait_s=WAIT_FOR_INDEX_S)
    progress = run.index.progress
    files = run.index.files(wanted.kind)
    chosen = run.searches.choose(run.index, wanted, sort, SEARCH_S)
    token_steps = _token_files(run, wanted.kind)
    page = chosen.groups[offset : offset + (DEFAULT_LIMIT if limit is None else limit)]
    return {
        "total": len(chosen.groups),
        "total_rollouts": sum(len(group.entry.outline.verdicts) for group in chosen.groups),
        "offset": offset,
        "groups": [_line(group, wanted, token_steps) for group in page],
        "is_complete": progress.is_complete and chosen.searched_share >= 1,
        "searched_share": chosen.searched_share,
        "index": asdict(progress),
        "stages": _stages(files),
        "token_steps": sorted(token_steps),
        "warnings": [warning for file in files for warning in file.warnings][:MAX_WARNINGS],
    }


def one_group(_: Library, run: WatchedRun, parameters: Parameters) -> dict[str, Any]:
    parameters.allow("kind", "step", "index")
    kind = cast(Kind, parameters.choice("kind", KINDS, "train"))
    step, index = parameters.required_whole("step"), parameters.required_whole("index")
    file = run.index.file_of(kind, step)
    entry = None if file is None else next((one for one in file.entries if one.line == index), None)
    if file is None or entry is None:
        raise NotServed(f"group {index} of step {step} ({kind}) was not saved, or is damaged")
    line, outline = read_line(file, entry), entry.outline
    try:
        scored = group_from_json(parse_object(line) or {})
        members = list(zip(scored.group.rollouts, scored.scores, scored.rewards, scored.advantages, strict=True))
    except ValueError as error:
        raise RunReadError(f"{file.path}, group {index}: not a valid group ({error})") from error
    stage = stage_tables(read_recipe(run.path)).get(outline.stage, {}) if kind == "train" else {}
    scale = _format_scale(run.path / layout.METRICS, step) if kind == "train" else None
    rollouts = []
    for rollout, score, reward, advantage in members:
        terms = reward_terms(reward, score, len(rollout.token_ids), stage, scale)
        rollouts.append(_rollout(rollout, score, reward, advantage) | {"reward_terms": plain(terms)})
    problem = scored.group.prompt.problem
    tokens, warnings = _tokens(_token_files(run, kind).get(step), index, outline.problem_id)
    for shown, kept in zip(rollouts, [*tokens, *[None] * len(rollouts)], strict=False):
        shown["tokens"] = kept
    return {
        "kind": kind,
        "step": step,
        "index": index,
        **{name: getattr(outline, name) for name in ("stage", "has_signal", "mean_reward", "spread")},
        "problem": plain(problem) | {"answer_in_words": gold_text(problem.answer)},
        "num_prompt_tokens": len(scored.group.prompt.token_ids),
        "rollouts": rollouts,
        "has_tokens": any(tokens),
        "warnings": warnings,
    }


def _wanted(parameters: Parameters) -> Wanted:
    signal = parameters.choice("signal", ("yes", "no"), "")
    wanted = Wanted(
        kind=cast(Kind, parameters.choice("kind", KINDS, "train")),
        text=parameters.text("q"),
        problem_id=parameters.text("problem"),
        verdicts=parameters.choices("verdict", [verdict.value for verdict in Verdict]),
        finishes=parameters.choices("finish", [finish.value for finish in Finish]),
        has_signal=None if not signal else signal == "yes",
        stages=parameters.texts("stage"),
        first_step=parameters.whole("first_step"),
        last_step=parameters.whole("last_step"),
        min_reward=parameters.number("min_reward"),
        max_reward=parameters.number("max_reward"),
    )
    if wanted.first_step is not None and wanted.last_step is not None and wanted.first_step > wanted.last_step:
        raise ParameterError("first_step", f"{wanted.first_step} is after last_step = {wanted.last_step}")
    return wanted


def _line(group: FoundGroup, wanted: Wanted, token_steps: Mapping[int, Path]) -> dict[str, Any]:
    file, outline = group.file, group.entry.outline
    return {
        "kind": file.kind,
        "step": file.step,
        "index": group.entry.line,
        **{name: getattr(outline, name) for name in _LISTED},
        "num_rollouts": len(outline.finishes),
        "rewards": [finite_or_none(reward) for reward in outline.rewards],
        "has_tokens": file.step in token_steps,
        "match": _match(group, wanted.text),
    }


def _match(group: FoundGroup, text: str) -> dict[str, Any] | None:
    if not text:
        return None
    try:
        found: Match | None = find_match(read_line(group.file, group.entry), group.entry.outline, text)
    except RunReadError:
        return None
    return None if found is None else asdict(found)


def _rollout(rollout: Rollout, score: Score, reward: float, advantage: float) -> dict[str, Any]:
    logprobs = [value for value in rollout.rollout_logprobs if math.isfinite(value)]
    return {
        "text": rollout.text,
        "finish": rollout.finish,
        "policy_version": rollout.policy_version,
        "num_tokens": len(rollout.token_ids),
        "logprob_mean": math.fsum(logprobs) / len(logprobs) if logprobs else None,
        "reward": finite_or_none(reward),
        "advantage": finite_or_none(advantage),
        "score": plain(score),
    }


def _format_scale(path: Path, step: int) -> float | None:
    """Return the scale of format parts in a step; None if the run did not record it."""
    prefix = b'{"step":%d,' % step
    try:
        with open_file(path) as file:
            line = next((line for line in file_lines(file) if line.startswith(prefix)), b"{}")
        return finite_or_none(step_from_json(json_value(line)).metrics.get("reward/format_bonus_scale", math.nan))
    except (OSError, ValueError):
        return None


def _token_files(run: WatchedRun, kind: Kind) -> dict[int, Path]:
    return rollout_files(run.path / layout.TOKENS) if kind == "train" else {}


def _tokens(path: Path | None, index: int, problem_id: str) -> tuple[Sequence[Mapping[str, Any] | None], list[str]]:
    """Return the recorded tokens of each rollout: the line of the same number, if its problem is the same."""
    if path is None:
        return (), []
    place = f"{path.parent.name}/{path.name}, group {index}"
    try:
        line = nth_line(path, index)
        if line is None:
            return (), []
        trace = trace_from_json(json_value(line))
    except ValueError as error:
        return (), [f"{place} is damaged ({error}): tokens are not shown"]
    if trace.problem_id != problem_id:
        return (), [f"{place} belongs to another problem: tokens are not shown"]
    return trace_to_json(trace)["rollouts"], []


def _stages(files: Iterable[FileIndex]) -> list[str]:
    """Return the stages in training order."""
    names = {entry.outline.stage: None for file in files for entry in reversed(file.entries)}
    return list(reversed(names))
