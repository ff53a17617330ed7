"""`groupwise eval`: evaluate a model on a task, into a result folder. It can be stopped and resumed.

    open_subject ─▶ engine as in training ─▶ for each task: sample what is missing, score, append ─▶ result.json

Nothing is sampled before everything that can be checked was checked: options, data, context length, and that the folder
holds no other evaluation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from groupwise.base.signals import StopControl, StopRequested
from groupwise.config import ConfigError, EngineConfig, TaskConfig, VerifierConfig, fingerprint
from groupwise.engines import factory
from groupwise.engines.engine import Engine
from groupwise.evals.contamination import find_contamination
from groupwise.evals.draw import draw_scored, make_requests
from groupwise.evals.general_format import GeneralFormat
from groupwise.evals.general_text import GENERAL_TEXT_VERSION
from groupwise.evals.guards import perplexity_estimate
from groupwise.evals.questions import Questions, task_name
from groupwise.evals.result_folder import folder_name, known_groups, open_result
from groupwise.evals.scores import score_groups
from groupwise.evals.subject import Subject
from groupwise.models.chat import Prompts, check_fits
from groupwise.models.load import versions
from groupwise.rewards.extract import AnswerMark
from groupwise.runs.files import plain
from groupwise.runs.lock import RunLock
from groupwise.runs.results import Result, append_group, data_fingerprint, write_result
from groupwise.scoring.scorer import make_scorer
from groupwise.tasks import Task
from groupwise.tasks.functions import is_local, task_of
from groupwise.types import Problem, Prompt, SamplingParams, ScoredGroup

ProgressCallback = Callable[[int, int], None]
"""Called with (problems done, problems in total)."""


@dataclass(frozen=True)
class Checked:
    """An evaluation whose options, data and lengths are in order."""

    task: Task
    prompts: Sequence[Prompt]
    sampling: SamplingParams
    verifier: VerifierConfig
    """As in training, without the process score: an evaluation is about what is correct."""
    blank: Result
    """The result before anything is sampled."""

    @property
    def problems(self) -> list[Problem]:
        return [prompt.problem for prompt in self.prompts]


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
    checked = check(subject, questions, task)
    control = control or StopControl()
    folder = out or root / folder_name(checked.blank, questions.task)
    with RunLock(folder), control.listening():
        result = open_result(folder, checked.blank)
        groups = known_groups(folder, (problem.id for problem in checked.problems))
        start = time.perf_counter()
        progress(len(groups), len(checked.prompts))
        missing = [prompt for prompt in checked.prompts if prompt.problem.id not in groups]
        scorer = make_scorer(checked.task, checked.verifier)
        with closing(scorer), suppress(StopRequested), control.interruptible():
            requests = make_requests(missing, questions.n, questions.seed)
            for scored in draw_scored(engine, scorer, requests, checked.sampling):
                append_group(folder, scored)
                groups[scored.group.prompt.problem.id] = scored
                progress(len(groups), len(checked.prompts))
        seconds = result.cost.get("seconds", 0.0) + time.perf_counter() - start
        num_tokens = sum(len(rollout.token_ids) for scored in groups.values() for rollout in scored.group.rollouts)
        result = replace(result, cost={"seconds": seconds, "tokens": num_tokens})
        if len(groups) == len(checked.prompts):
            result = finish(result, subject, questions, checked, list(groups.values()))
        write_result(folder, result)
    return folder, result


def check(subject: Subject, questions: Questions, task: Task | None = None) -> Checked:
    """Load the task and refuse what cannot be evaluated."""
    name, recipe, policy = task_name(questions.task), subject.recipe, subject.policy
    if task is None:
        # A run's own task keeps the reward functions that it was trained with.
        reward = recipe.task.reward if recipe is not None and recipe.task.name == questions.task else None
        task = task_of(TaskConfig(name=name, options=questions.options, reward=reward))
    problems = task.problems(questions.split)
    asked = problems[: questions.limit or None]
    if not asked:
        raise ConfigError(f"eval --task {questions.task}: the {questions.split} split has no problems")
    if len({problem.id for problem in asked}) < len(asked):
        raise ConfigError(f"eval --task {questions.task}: two problems have the same id; make the ids unique")
    known = Prompts(policy.tokenizer)
    prompts = [known[problem] for problem in asked]
    sampling = questions.sampling(recipe)
    check_fits(prompts, sampling.max_new_tokens, policy.context_tokens)
    is_general = isinstance(task, GeneralFormat)
    blank = Result(
        model=subject.model,
        task={"name": name, "options": dict(questions.options)},
        data={"split": questions.split, "fingerprint": data_fingerprint(problems), "count": len(asked)},
        verifier=f"{task.verifier} + {GENERAL_TEXT_VERSION}" if is_general else task.verifier,
        sampling=plain({"n": questions.n, "seed": questions.seed, **asdict(sampling)}),
        recipe=None if recipe is None else fingerprint(recipe),
        versions=versions(),
    )
    verifier = replace(recipe.verifier, process="") if recipe else VerifierConfig()
    return Checked(task, prompts, sampling, verifier, blank)


def finish(
    result: Result, subject: Subject, questions: Questions, checked: Checked, groups: Sequence[ScoredGroup]
) -> Result:
    """Return the result with its scores, and with the overlap between its problems and the training problems."""
    scores, by = score_groups(groups, n=questions.n, ks=questions.ks, marks=answer_marks(checked.task))
    if isinstance(checked.task, GeneralFormat):
        scores["perplexity"] = perplexity_estimate(subject.policy)
    trained_on = _training_problems(subject, questions, checked.task)
    contamination = None if trained_on is None else find_contamination(checked.problems, trained_on).to_json()
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
