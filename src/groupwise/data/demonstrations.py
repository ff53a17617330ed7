"""Demonstrations for supervised fine-tuning: from the task's own solver, from a file, or from correct rollouts."""

from __future__ import annotations

from collections.abc import Sequence

from groupwise.config import ConfigError
from groupwise.runs.reader import Run
from groupwise.tasks import prompt_text
from groupwise.tasks.rows import load_rows, stable_id
from groupwise.tasks.task import Demonstrator, Task
from groupwise.types import Demonstration, Finish, Message, Problem, Rollout, Verdict


def from_task(task: Task, problems: Sequence[Problem]) -> list[Demonstration]:
    if not isinstance(task, Demonstrator):
        raise ConfigError(
            f'source = "task": {type(task).__name__} cannot solve its own problems (it has no demonstrate method); '
            'use source = "file", or "rollouts" after an RL stage'
        )
    return [Demonstration(problem, task.demonstrate(problem)) for problem in problems]


def from_rollouts(run: Run, up_to_step: int) -> list[Demonstration]:
    """Return the best correct completion of each problem so far: highest reward, then shortest, then earliest.

    Truncated completions are left out, because imitating them would teach the model to stop in mid-sentence.
    """
    best: dict[str, tuple[tuple[float, int], Problem, Rollout]] = {}
    for step in run.rollout_steps():
        if step > up_to_step:
            break
        for scored in run.rollouts(step):
            problem = scored.group.prompt.problem
            for rollout, score in zip(scored.group.rollouts, scored.scores, strict=True):
                rank = (-score.reward, len(rollout.token_ids))
                is_usable = score.verdict is Verdict.CORRECT and rollout.finish is Finish.STOP
                if is_usable and (problem.id not in best or rank < best[problem.id][0]):
                    best[problem.id] = (rank, problem, rollout)
    return [Demonstration(problem, rollout.text, rollout.token_ids) for _, problem, rollout in best.values()]


def from_file(path: str) -> list[Demonstration]:
    """Read JSONL rows with `prompt` (text) or `messages` (role, content), and `completion`.

    Repeated rows count once.
    """
    demonstrations = {}
    for row in load_rows(path, "train", key="stages.file"):
        completion = row.text("completion")
        has_messages = "messages" in row.values
        messages = row.messages("messages") if has_messages else (Message("user", row.text("prompt")),)
        identity = stable_id("demonstration", *((message.role, message.content) for message in messages))
        problem = Problem(identity, messages, answer="")
        demonstrations[identity, completion] = Demonstration(problem, completion)
    return list(demonstrations.values())


def refuse_held_out(demonstrations: Sequence[Demonstration], held_out: Sequence[Problem], source: str) -> None:
    """Refuse demonstrations of held-out problems, which would make the evaluation worthless."""
    questions = {prompt_text(problem): problem.id for problem in held_out}
    for demonstration in demonstrations:
        question = prompt_text(demonstration.problem)
        if question in questions:
            raise ConfigError(
                f"{source} has a demonstration of the held-out problem {questions[question]}; remove it, or the "
                "evaluation would measure memorization"
            )
