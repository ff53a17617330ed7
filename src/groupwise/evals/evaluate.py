"""`groupwise eval`: a model on a task, into a result folder that can be stopped and taken up again.

    open_subject ─▶ engine as in training ─▶ for each task: draw what is missing, score, append ─▶ scores ─▶ result.json

Nothing is drawn before everything that can be checked was checked: options, data, context length, and that the folder
holds no other evaluation. The folder's name, unless it is given, has a hash of all that decides the completions; so the
same command finds what it left.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from groupwise.base.signals import StopControl, StopRequested
from groupwise.config import ConfigError, EngineConfig, TaskConfig, VerifierConfig, apply_override, fingerprint
from groupwise.engines import factory
from groupwise.engines.engine import Engine
from groupwise.evals.contamination import find_contamination
from groupwise.evals.draw import draw_scored, make_requests
from groupwise.evals.general_format import GeneralFormat
from groupwise.evals.general_text import GENERAL_TEXT_VERSION
from groupwise.evals.guards import perplexity_estimate
from groupwise.evals.held_out import eval_max_new_tokens
from groupwise.evals.scores import score_groups
from groupwise.evals.subject import Subject
from groupwise.models.chat import Prompts, check_fits
from groupwise.models.versions import versions
from groupwise.rewards.extract import AnswerMark
from groupwise.runs.files import plain
from groupwise.runs.lock import RunLock
from groupwise.runs.results import (
    Result,
    append_group,
    data_fingerprint,
    is_result,
    mend_groups,
    read_groups,
    read_result,
    write_result,
)
from groupwise.scoring.scorer import make_scorer
from groupwise.tasks import Split, Task, task_class
from groupwise.tasks.functions import Reward, is_local, task_of
from groupwise.types import Problem, SamplingParams, ScoredGroup

MAX_NEW_TOKENS = 1024
"""For a model that is no run, and so has no recipe that says."""

SHORT_NAMES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "math500": ("math", {"held_out": "HuggingFaceH4/MATH-500"}),
    "sql": ("sql-jsonl", {}),
    "general": ("groupwise.evals.general_format:GeneralFormat", {}),
}
"""Names that an evaluation knows besides those of `groupwise tasks`: (task, options)."""

ProgressCallback = Callable[[int, int], None]
"""Told (problems done, problems in all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What is asked, and how."""

    task: str
    """A task's name, or one of SHORT_NAMES."""
    options: Mapping[str, Any]
    reward: str | Mapping[str, float] | None = None
    """Reward functions instead of the task's own verifier, as a recipe names them."""
    split: Split = "held_out"
    limit: int = 0
    """The first so many problems; 0 is all."""
    n: int = 1
    """Completions a problem."""
    ks: tuple[int, ...] = (1,)
    temperature: float | None = None
    """None: greedy for one completion a problem, else 1."""
    max_new_tokens: int = 0
    """0: as the run's recipe says, or MAX_NEW_TOKENS."""
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
            raise refuse(f"--temperature 0 --n {self.n} would draw the same completion {self.n} times; take --n 1")


def check_task(task: str) -> None:
    """ConfigError for a task that there is not."""
    task_class(SHORT_NAMES.get(task, (task, {}))[0])


def task_options(task: str, tasks: Sequence[str], overrides: Sequence[str], subject: Subject) -> dict[str, Any]:
    """Those of the run where it is the run's own task, then `--set`.

    An override `TASK.key=value` is for that one of several tasks, `key=value` for each.
    """
    recipe = subject.recipe
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


def make_engine(subject: Subject) -> Engine:
    """As in training, from the subject's own weights; a run's vLLM would need a copy of them, and is not asked."""
    config = subject.recipe.engine if subject.recipe else EngineConfig()
    return factory.make_engine(EngineConfig() if config.name == "vllm" else config, subject.policy)


def evaluate(
    subject: Subject,
    engine: Engine,
    questions: Questions,
    *,
    out: Path | None = None,
    root: Path = Path("evals"),
    control: StopControl | None = None,
    progress: ProgressCallback = lambda done, count: None,
    rewards: Mapping[str, Reward] | None = None,
    task: Task | None = None,
) -> tuple[Path, Result]:
    """Draw, score and summarize; (the folder, the result). A result that is not finished was asked to stop.

    `out` is the folder; without it the result has one of its own in `root`. `rewards` and `task` are functions and a
    task that cannot be imported.
    """
    control = control or StopControl()
    name = SHORT_NAMES.get(questions.task, (questions.task, {}))[0]
    task = task_of(TaskConfig(name=name, options=questions.options, reward=questions.reward), rewards, task)
    problems = task.problems(questions.split)
    asked = problems[: questions.limit or None]
    _check_problems(asked, questions)
    prompts = Prompts(subject.policy.tokenizer)
    sampling = _sampling(questions, subject)
    check_fits([prompts[problem] for problem in asked], sampling.max_new_tokens, subject.policy.context_tokens)
    result = _begin(subject, questions, task, name, problems, len(asked), sampling)
    folder = out or root / _folder_name(result, questions.task)
    with RunLock(folder), control.listening():
        result = _take_up(folder, result)
        groups = _known_groups(folder, asked)
        start = time.perf_counter()
        progress(len(groups), len(asked))
        missing = [prompts[problem] for problem in asked if problem.id not in groups]
        scorer = make_scorer(task, _verifier_config(subject))
        try:
            with control.interruptible():
                requests = make_requests(missing, questions.n, questions.seed)
                for scored in draw_scored(engine, scorer, requests, sampling):
                    append_group(folder, scored)
                    groups[scored.group.prompt.problem.id] = scored
                    progress(len(groups), len(asked))
        except StopRequested:
            pass
        finally:
            scorer.close()
        seconds = result.cost.get("seconds", 0.0) + time.perf_counter() - start
        result = replace(result, cost={"seconds": seconds, "tokens": _num_tokens(groups.values())})
        if len(groups) == len(asked):
            trained_on = _training_problems(subject, questions, task)
            result = _finish(result, subject, task, questions, list(groups.values()), asked, trained_on)
        write_result(folder, result)
    return folder, result


def _check_problems(asked: Sequence[Problem], questions: Questions) -> None:
    if not asked:
        raise ConfigError(f"eval --task {questions.task}: the {questions.split} split has no problems")
    if len({problem.id for problem in asked}) < len(asked):
        raise ConfigError(f"eval --task {questions.task}: two problems have the same id; make ids differ")


def _sampling(questions: Questions, subject: Subject) -> SamplingParams:
    recipe = subject.recipe
    greedy = 0.0 if questions.n == 1 else 1.0
    return SamplingParams(
        max_new_tokens=questions.max_new_tokens or (eval_max_new_tokens(recipe) if recipe else MAX_NEW_TOKENS),
        temperature=greedy if questions.temperature is None else questions.temperature,
        stop_strings=recipe.evaluation.stop_strings if recipe else (),
    )


def _verifier_config(subject: Subject) -> VerifierConfig:
    """As in training, without the process score: an evaluation is about what is right."""
    return replace(subject.recipe.verifier, process="") if subject.recipe else VerifierConfig()


def _begin(
    subject: Subject,
    questions: Questions,
    task: Task,
    name: str,
    problems: Sequence[Problem],
    count: int,
    sampling: SamplingParams,
) -> Result:
    """The result as far as it is known before anything is drawn."""
    is_general = isinstance(task, GeneralFormat)
    return Result(
        model=subject.model,
        task={"name": name, "options": dict(questions.options)},
        data={"split": questions.split, "fingerprint": data_fingerprint(problems), "count": count},
        verifier=f"{task.verifier} + {GENERAL_TEXT_VERSION}" if is_general else task.verifier,
        sampling=plain({"n": questions.n, "seed": questions.seed, **asdict(sampling)}),
        recipe=None if subject.recipe is None else fingerprint(subject.recipe),
        versions=versions(),
    )


def _folder_name(result: Result, task: str) -> str:
    """The same for the same evaluation, and for no other."""
    mark = hashlib.sha256(json.dumps(result.identity(), sort_keys=True).encode()).hexdigest()[:8]
    how = "greedy" if result.sampling["temperature"] == 0 else f"n{result.sampling['n']}"
    parts = [Path(str(result.model["path"])).name, str(result.model["checkpoint"] or ""), task, how]
    safe = [re.sub(r"[^A-Za-z0-9._-]+", "-", part).strip("-.")[:40] for part in parts if part]
    return "_".join([*safe, mark])


def _take_up(folder: Path, result: Result) -> Result:
    """What is there already of this evaluation; a folder with another one is refused."""
    if not is_result(folder):
        strangers = sorted(path.name for path in folder.iterdir() if path.name != "run.lock")
        if strangers:
            raise ConfigError(f"--out {folder}: holds {strangers[0]} and no result; choose a new folder")
        write_result(folder, result)
        return result
    before = read_result(folder)
    then, now = before.identity(), result.identity()
    for key in now:
        if then[key] != now[key]:
            raise ConfigError(
                f"--out {folder}: holds an evaluation with {key} {then[key]}, and this one has {now[key]}; choose "
                "another folder"
            )
    mend_groups(folder)
    return replace(result, cost=before.cost)


def _known_groups(folder: Path, asked: Sequence[Problem]) -> dict[str, ScoredGroup]:
    wanted = {problem.id for problem in asked}
    found = {scored.group.prompt.problem.id: scored for scored in read_groups(folder)}
    return {key: scored for key, scored in found.items() if key in wanted}


def _num_tokens(groups: Iterable[ScoredGroup]) -> int:
    return sum(len(rollout.token_ids) for scored in groups for rollout in scored.group.rollouts)


def _finish(
    result: Result,
    subject: Subject,
    task: Task,
    questions: Questions,
    groups: Sequence[ScoredGroup],
    asked: Sequence[Problem],
    trained_on: Sequence[Problem] | None,
) -> Result:
    scores, by = score_groups(groups, n=questions.n, ks=questions.ks, marks=answer_marks(task))
    if isinstance(task, GeneralFormat):
        scores["perplexity"] = perplexity_estimate(subject.policy)
    contamination = None if trained_on is None else find_contamination(asked, trained_on).to_json()
    return replace(result, scores=scores, by=by, contamination=contamination, is_finished=True)


def _training_problems(subject: Subject, questions: Questions, task: Task) -> Sequence[Problem] | None:
    """What the evaluated run was trained on; None for a model that is no run, or whose task cannot be imported here."""
    if subject.recipe is None:
        return None
    config = subject.recipe.task
    if (config.name, config.options) == (questions.task, questions.options):
        return task.problems("train")
    return None if is_local(config) else task_of(config).problems("train")


def answer_marks(task: Task) -> tuple[AnswerMark, ...]:
    """Where a task looks for answers, as far as it says so; else in `<answer>`, as the tasks that do not say do."""
    marks: tuple[AnswerMark, ...] = getattr(task, "marks", ()) or getattr(task, "answer_marks", ()) or ("tag",)
    return marks
