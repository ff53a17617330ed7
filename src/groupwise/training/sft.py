"""Supervised fine-tuning: the steps of the RL loop with a likelihood loss on the completion.

    demonstrations ──▶ examples ──▶ one update per step ──▶ log, evaluate, save

Demonstrations come from the task's own solver, from the correct rollouts of earlier stages, or from a file.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from groupwise.base.seeds import shuffled
from groupwise.config import ConfigError, SftStage
from groupwise.data.batch import Example, Microbatch, weigh
from groupwise.models.chat import encode_completion
from groupwise.models.policy import Measured
from groupwise.runs.reader import Run
from groupwise.tasks import prompt_text
from groupwise.tasks.rows import load_rows, stable_id
from groupwise.tasks.task import Demonstrator, Task
from groupwise.training.metrics import update_metrics
from groupwise.training.training import Training
from groupwise.training.update import TokenLoss, scheduled_rate, update_policy
from groupwise.types import Demonstration, Finish, Message, Problem, Rollout, Verdict


def run_stage(training: Training, stage: SftStage) -> None:
    """Run a stage from `training.position` to its end."""
    policy, position, seed = training.policy, training.position, training.recipe.seed
    examples = make_examples(training, stage)

    while not training.is_stage_over(stage):
        step_start = time.perf_counter()
        chosen = choose_examples(examples, stage, position.stage_step, key=(seed, stage.name))
        stats = update_policy(
            policy,
            weigh(chosen, stage.weights),
            likelihood_loss,
            temperature=1.0,
            learning_rate=scheduled_rate(stage.optimizer, position.stage_step, stage.steps),
            max_tokens=stage.microbatch_tokens,
        )
        training.after_update(stats)
        metrics = update_metrics([stats]) | {"sft/loss": stats.loss, "sft/demonstrations": float(len(chosen))}
        training.after_step(stage, metrics, num_tokens=0, seconds=time.perf_counter() - step_start)


def make_examples(training: Training, stage: SftStage) -> list[Example]:
    tokenizer, limit = training.policy.tokenizer, training.policy.context_tokens
    stop_id = training.policy.stop_token_ids[0]
    examples = []
    demonstrations = load_demonstrations(stage, training)
    prompts = training.prompts.of([demonstration.problem for demonstration in demonstrations])
    for demonstration, prompt in zip(demonstrations, prompts, strict=True):
        prompt_ids = prompt.token_ids
        completion_ids = demonstration.token_ids or encode_completion(tokenizer, demonstration.completion, stop_id)
        length = len(prompt_ids) + len(completion_ids)
        if length > limit:
            raise ConfigError(
                f"stage {stage.name}: the demonstration of problem {demonstration.problem.id} has {len(prompt_ids)} "
                f"prompt + {len(completion_ids)} completion = {length} tokens, more than the context of {limit}; "
                "remove it, shorten it, or use a model with a longer context"
            )
        examples.append(Example(prompt_ids, completion_ids))
    return examples


def check_source(stage: SftStage, task: Task, held_out: Sequence[Problem]) -> None:
    """Check the demonstrations before the run begins: they exist, and none is of a held-out problem."""
    if stage.source == "task":
        from_task(task, ())
    elif stage.source == "file":
        refuse_held_out(from_file(stage.file), held_out, stage.file)


def load_demonstrations(stage: SftStage, training: Training) -> list[Demonstration]:
    """Load the stage's demonstrations, in a fixed order."""
    if stage.source == "task":
        demonstrations = from_task(training.task, training.train_problems)
    elif stage.source == "file":
        demonstrations = from_file(stage.file)
    else:
        first_step = training.position.step - training.position.stage_step
        demonstrations = from_rollouts(Run(training.run_dir), up_to_step=first_step)
    if len(demonstrations) < stage.min_demonstrations:
        raise ConfigError(
            f"stage {stage.name}: {len(demonstrations)} demonstrations from source = {stage.source!r}, but "
            f"min_demonstrations = {stage.min_demonstrations}; train the earlier stages for longer, or lower that value"
        )
    return demonstrations[: stage.max_demonstrations or None]


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


def choose_examples(
    examples: Sequence[Example], stage: SftStage, stage_step: int, key: Sequence[object]
) -> list[Example]:
    """Return the next examples in endless shuffled passes. The order is a hash of the pass, so there is no state."""
    chosen: list[Example] = []
    for position in range(stage_step * stage.demonstrations_per_step, (stage_step + 1) * stage.demonstrations_per_step):
        number, index = divmod(position, len(examples))
        if index == 0 or not chosen:
            order = shuffled(len(examples), *key, "pass", number)
        chosen.append(examples[order[index]])
    return chosen


def likelihood_loss(measured: Measured, microbatch: Microbatch) -> TokenLoss:
    return TokenLoss(-measured.logprobs, {"policy/entropy_nats": measured.entropies})
