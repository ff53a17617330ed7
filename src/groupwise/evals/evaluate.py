"""`groupwise eval`: evaluate a model on a task, into a result folder. It can be stopped and resumed.

    open_subject ─▶ engine as in training ─▶ for each task: sample what is missing, score, append ─▶ result.json

Nothing is sampled before everything that can be checked was checked: options, data, context length, and that the folder
holds no other evaluation.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from groupwise.base.json_values import plain
from groupwise.base.signals import StopControl, StopRequested
from groupwise.config import ConfigError, EngineConfig, Recipe, TaskConfig, VerifierConfig, apply_override, fingerprint
from groupwise.engines import factory
from groupwise.engines.engine import Engine
from groupwise.evals.contamination import find_contamination
from groupwise.evals.general_format import GeneralFormat
from groupwise.evals.guards import GENERAL_TEXT_VERSION, perplexity_estimate
from groupwise.evals.held_out import draw_scored, eval_max_new_tokens, make_requests
from groupwise.evals.scores import score_groups
from groupwise.evals.subject import Subject
from groupwise.models.chat import Prompts, check_fits
from groupwise.models.load import versions
from groupwise.rewards.extract import AnswerMark
from groupwise.runs.files import repair_tail
from groupwise.runs.lock import RunLock
from groupwise.runs.results import (
    COMPLETIONS,
    Result,
    append_group,
    data_fingerprint,
    is_result,
    read_groups,
    read_result,
    write_result,
)
from groupwise.scoring.scorer import make_scorer
from groupwise.tasks import task_class
from groupwise.tasks.functions import is_local, task_of
from groupwise.tasks.task import Split, Task
from groupwise.types import Problem, Prompt, SamplingParams, ScoredGroup

ProgressCallback = Callable[[int, int], None]
"""Called with (problems done, problems in total)."""

MAX_NEW_TOKENS = 1024
"""Limit for a model that is not a run and so has no recipe."""

SHORT_NAMES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "math500": ("math", {"held_out": "HuggingFaceH4/MATH-500"}),
    "sql": ("sql-jsonl", {}),
    "general": ("groupwise.evals.general_format:GeneralFormat", {}),
}
"""Names that an evaluation accepts besides those of `groupwise tasks`: (task, options)."""


def task_name(task: str) -> str:
    """Return the full name of a task that may be given by a short name."""
    return SHORT_NAMES.get(task, (task, {}))[0]


def check_task(task: str) -> None:
    """Raise a ConfigError if there is no such task."""
    task_class(task_name(task))


def task_options(task: str, tasks: Sequence[str], overrides: Sequence[str], recipe: Recipe | None) -> dict[str, Any]:
    """Return the options of a task: those of the recipe if it is the recipe's own task, then `--set`.

    With several tasks, the override `TASK.key=value` applies to one of them and `key=value` to all.
    """
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    task: str
    """Name of a task, or one of SHORT_NAMES."""
    options: Mapping[str, Any]
    split: Split = "held_out"
    limit: int = 0
    """Number of problems, from the first; 0: all."""
    n: int = 1
    """Completions per problem."""
    ks: tuple[int, ...] = (1,)
    temperature: float | None = None
    """None: greedy for one completion per problem, else 1."""
    max_new_tokens: int = 0
    """0: the value of the run's recipe, or MAX_NEW_TOKENS."""
    seed: int = 0

    def __post_init__(self) -> None:
        def check(is_right: bool, message: str) -> None:
            if not is_right:
                raise ConfigError(f"eval: {message}")

        n, ks, temperature = self.n, ",".join(map(str, self.ks)), self.temperature
        check(n >= 1, f"--n {n}: must be at least 1")
        in_range = bool(self.ks) and all(1 <= k <= n for k in self.ks)
        check(in_range, f"--k {ks}: each must be from 1 to --n {n}; raise --n to {max(self.ks, default=1)}")
        is_negative = min(self.limit, self.max_new_tokens, self.seed) < 0
        check(not is_negative, "--limit, --max-new-tokens and --seed must not be negative")
        check(0 <= (temperature or 0) <= 100, f"--temperature {temperature}: must be from 0 to 100; 0 is greedy")
        is_repeated = temperature == 0 and n > 1
        check(not is_repeated, f"--temperature 0 --n {n} would sample the same completion {n} times; set --n 1")

    def sampling(self, recipe: Recipe | None) -> SamplingParams:
        greedy = 0.0 if self.n == 1 else 1.0
        return SamplingParams(
            max_new_tokens=self.max_new_tokens or (eval_max_new_tokens(recipe) if recipe else MAX_NEW_TOKENS),
            temperature=greedy if self.temperature is None else self.temperature,
            stop_strings=recipe.evaluation.stop_strings if recipe else (),
        )


def evaluate(
    subject: Subject,
    engine: Engine,
    questions: Questions,
    *,
    out: Path | None = None,
    root: Path = Path("evals"),
    control: StopControl | None = None,
    progress: ProgressCallback = lambda done, count: None,
    task: Task | None = None,
) -> tuple[Path, Result]:
    """Sample, score and summarize. Return (the folder, the result), which is unfinished if a stop was requested.

    `out` is the folder; without it the result gets its own folder in `root`. `task` is the task as an object, where the
    one that `questions` names cannot be made from its name and options alone.
    """
    recipe = subject.recipe
    if task is None:
        # A run's own task keeps the reward functions that it was trained with.
        reward = recipe.task.reward if recipe is not None and recipe.task.name == questions.task else None
        task = task_of(TaskConfig(name=task_name(questions.task), options=questions.options, reward=reward))
    prompts, blank = check(subject, questions, task)
    control = control or StopControl()
    folder = out or root / folder_name(blank, questions.task)
    with RunLock(folder), control.listening():
        result = open_result(folder, blank)
        groups = {scored.group.prompt.problem.id: scored for scored in read_groups(folder)}
        start = time.perf_counter()
        progress(len(groups), len(prompts))
        missing = [prompt for prompt in prompts if prompt.problem.id not in groups]
        # Without the process score of the training: an evaluation is about what is correct.
        scorer = make_scorer(task, replace(recipe.verifier, process="") if recipe else VerifierConfig())
        with closing(scorer), suppress(StopRequested), control.interruptible():
            requests = make_requests(missing, questions.n, questions.seed)
            for scored in draw_scored(engine, scorer, requests, questions.sampling(recipe)):
                append_group(folder, scored)
                groups[scored.group.prompt.problem.id] = scored
                progress(len(groups), len(prompts))
        seconds = result.cost.get("seconds", 0.0) + time.perf_counter() - start
        num_tokens = sum(len(rollout.token_ids) for scored in groups.values() for rollout in scored.group.rollouts)
        result = replace(result, cost={"seconds": seconds, "tokens": num_tokens})
        if len(groups) == len(prompts):
            result = finish(result, subject, questions, task, [groups[prompt.problem.id] for prompt in prompts])
        write_result(folder, result)
    return folder, result


def check(subject: Subject, questions: Questions, task: Task) -> tuple[list[Prompt], Result]:
    """Refuse what cannot be evaluated. Return (the prompts, the result before anything is sampled)."""
    policy, recipe = subject.policy, subject.recipe
    problems = task.problems(questions.split)
    asked = problems[: questions.limit or None]
    if not asked:
        raise ConfigError(f"eval --task {questions.task}: the {questions.split} split has no problems")
    if len({problem.id for problem in asked}) < len(asked):
        raise ConfigError(f"eval --task {questions.task}: two problems have the same id; make the ids unique")
    prompts = Prompts(policy.tokenizer).of(asked)
    sampling = questions.sampling(recipe)
    check_fits(prompts, sampling.max_new_tokens, policy.context_tokens)
    is_general = isinstance(task, GeneralFormat)
    blank = Result(
        model=subject.model,
        task={"name": task_name(questions.task), "options": dict(questions.options)},
        data={"split": questions.split, "fingerprint": data_fingerprint(problems), "count": len(asked)},
        verifier=f"{task.verifier} + {GENERAL_TEXT_VERSION}" if is_general else task.verifier,
        sampling=plain({"n": questions.n, "seed": questions.seed, **asdict(sampling)}),
        recipe=None if recipe is None else fingerprint(recipe),
        versions=versions(),
    )
    return prompts, blank


def finish(result: Result, subject: Subject, questions: Questions, task: Task, groups: Sequence[ScoredGroup]) -> Result:
    """Return the result with its scores, and with the overlap between its problems and the training problems."""
    scores, by = score_groups(groups, n=questions.n, ks=questions.ks, marks=answer_marks(task))
    if isinstance(task, GeneralFormat):
        scores["perplexity"] = perplexity_estimate(subject.policy)
    trained_on = _training_problems(subject, questions, task)
    asked = [scored.group.prompt.problem for scored in groups]
    contamination = None if trained_on is None else find_contamination(asked, trained_on).to_json()
    return replace(result, scores=scores, by=by, contamination=contamination, is_finished=True)


def _training_problems(subject: Subject, questions: Questions, task: Task) -> Sequence[Problem] | None:
    """Return what the run was trained on; None for a model, and for a task that cannot be imported here."""
    if subject.recipe is None:
        return None
    config = subject.recipe.task
    if (config.name, config.options) == (questions.task, questions.options):
        return task.problems("train")
    return None if is_local(config) else task_of(config).problems("train")


def make_engine(subject: Subject) -> Engine:
    """Make the engine of the run, on the subject's own weights. For vLLM, which needs a copy of them, the default."""
    config = subject.recipe.engine if subject.recipe else EngineConfig()
    return factory.make_engine(EngineConfig() if config.name == "vllm" else config, subject.policy)


def answer_marks(task: Task) -> tuple[AnswerMark, ...]:
    """Return where a task looks for answers; `<answer>` if it does not say."""
    marks: tuple[AnswerMark, ...] = getattr(task, "marks", ()) or getattr(task, "answer_marks", ()) or ("tag",)
    return marks


def folder_name(result: Result, task: str) -> str:
    """Return a name that depends on everything that decides the completions, so the same command finds its folder."""
    digest = hashlib.sha256(json.dumps(result.identity(), sort_keys=True).encode()).hexdigest()[:8]
    how = "greedy" if result.sampling["temperature"] == 0 else f"n{result.sampling['n']}"
    parts = [Path(str(result.model["path"])).name, str(result.model["checkpoint"] or ""), task, how]
    safe = [re.sub(r"[^A-Za-z0-9._-]+", "-", part).strip("-.")[:40] for part in parts if part]
    return "_".join([*safe, digest])


def open_result(folder: Path, result: Result) -> Result:
    """Start a result in a folder or resume the one there. Refuse a folder that holds another evaluation."""
    if not is_result(folder):
        strangers = sorted(path.name for path in folder.iterdir() if path.name != "run.lock")
        if strangers:
            raise ConfigError(f"--out {folder}: contains {strangers[0]} but no result; choose a new folder")
        write_result(folder, result)
        return result
    before = read_result(folder)
    then = before.identity()
    for key, now in result.identity().items():
        if then[key] != now:
            raise ConfigError(
                f"--out {folder}: holds an evaluation with {key} {then[key]}, but this one has {now}; choose another "
                "folder"
            )
    repair_tail(folder / COMPLETIONS)
    return replace(result, cost=before.cost)
