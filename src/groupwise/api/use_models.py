"""Use models and runs from Python: evaluate them with intervals, sample from them, export them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groupwise.api.keywords import named_rewards, named_task
from groupwise.config import ConfigError, TaskConfig
from groupwise.runs import layout
from groupwise.runs.reader import Run
from groupwise.runs.results import Estimate, Result

if TYPE_CHECKING:
    from groupwise.evals.sample import Sampled


@dataclass(frozen=True)
class Evaluation:
    """An evaluation: its folder, which `compare` and `report` take, and its result."""

    folder: Path
    result: Result

    @property
    def scores(self) -> Mapping[str, Estimate]:
        """Scores with their 95 % intervals, by name: `pass@1`, `pass@8`, `maj@8`, …"""
        return self.result.scores

    def __repr__(self) -> str:
        from groupwise.runs.results import say_estimate

        scores = ", ".join(f"{name} {' '.join(say_estimate(name, found))}" for name, found in self.scores.items())
        return f"<Evaluation {self.folder}: {scores or 'not finished'}>"


def evaluate(
    model: Run | str | Path,
    task: Any = None,
    *,
    task_options: Mapping[str, Any] | None = None,
    reward: Any = None,
    n: int | None = None,
    k: Sequence[int] = (1,),
    checkpoint: str | None = None,
    limit: int = 0,
    split: str = "held_out",
    temperature: float | None = None,
    max_new_tokens: int = 0,
    seed: int = 0,
    out: str | Path | None = None,
) -> Evaluation:
    """Evaluate a run or a model on a task: pass@k and maj@k with 95 % intervals.

    `task` is a name, a task object, or by default the run's own task. The same call takes up an evaluation that was
    interrupted. Completions lie in `out`, or in a folder of their own under `evals`.
    """
    from groupwise.api.watchers import quiet_libraries
    from groupwise.evals.evaluate import Questions, check_task, make_engine, task_name
    from groupwise.evals.evaluate import evaluate as carry_out
    from groupwise.evals.evaluate import task_options as options_of
    from groupwise.evals.subject import open_subject
    from groupwise.tasks.functions import task_of

    if isinstance(task, str):
        check_task(task)
    quiet_libraries()
    subject = open_subject(str(model.path if isinstance(model, Run) else model), checkpoint)
    own = subject.recipe.task if subject.recipe else None
    if task is None and own is None:
        raise ConfigError(f"evaluate {model}: name a task; only a run has one of its own")
    names, rewards = named_rewards(reward, "evaluate")
    given = None
    if task is None or isinstance(task, str):
        name = task or own.name  # type: ignore[union-attr]
        options = {**options_of(name, [name], [], subject.recipe), **(task_options or {})}
    else:
        name, options, given = named_task(task, task_options)
    # The functions that were passed are those of the run, whose recipe has their weights.
    reward_names = own.reward if own is not None and own.reward and name == own.name else names
    questions = Questions(
        task=name,
        options=options,
        split=split,  # type: ignore[arg-type]
        limit=limit,
        n=max(k) if n is None else n,
        ks=tuple(sorted(set(k))),
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        seed=seed,
    )
    config = TaskConfig(name=task_name(name), options=options, reward=reward_names)
    folder, result = carry_out(
        subject,
        make_engine(subject),
        questions,
        out=None if out is None else Path(out),
        task=task_of(config, rewards, given),
    )
    return Evaluation(folder, result)


def sample(
    model: Run | str | Path,
    question: str,
    *,
    n: int = 4,
    temperature: float = 1.0,
    max_new_tokens: int | None = None,
    seed: int = 0,
    checkpoint: str | None = None,
) -> list[Sampled]:
    """Sample `n` completions of a question. Each has its `rollout` (text, tokens, logprobs) and its `answer`.

    `max_new_tokens` is by default 512, or what the model's context holds. `checkpoint` is for a run: "best" (the
    default), "last", or a name.
    """
    from groupwise.api.watchers import quiet_libraries
    from groupwise.evals.sample import judge
    from groupwise.evals.sample import sample as draw

    quiet_libraries()
    rollouts = draw(
        str(model.path if isinstance(model, Run) else model),
        question,
        n=n,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        seed=seed,
        checkpoint=checkpoint,
    )
    return judge(rollouts, question, None, {})


def export(model: Run | str | Path, out: str | Path, *, checkpoint: str | None = None, use_ema: bool = False) -> Path:
    """Write a run's weights, or any model, as a Hugging Face folder that `transformers` loads. Return the folder.

    `checkpoint` is "best" (by held-out pass@1, the default), "last", or a name.
    """
    from groupwise.models.export import export_model, export_run

    path = model.path if isinstance(model, Run) else Path(model)
    if (path / layout.RECIPE).is_file():
        export_run(path, Path(out), checkpoint=checkpoint or "best", use_ema=use_ema)
    elif checkpoint is not None or use_ema:
        raise ConfigError(f"export {model}: a checkpoint or the moving average can be named for a run directory only")
    else:
        export_model(str(model), Path(out))
    return Path(out)
