"""Use runs and models from Python: evaluate, sample, export, report, diagnose, compare, and plan a run."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from groupwise.api.train_runs import load_recipe, named_rewards, named_task
from groupwise.config import ConfigError, Recipe, TaskConfig
from groupwise.runs import layout
from groupwise.runs.reader import Run
from groupwise.runs.results import Estimate, Result

if TYPE_CHECKING:
    from groupwise.doctor import Finding
    from groupwise.evals.compare import Comparison
    from groupwise.evals.sample import Sampled
    from groupwise.planner.make_plan import Plan


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


Source: TypeAlias = Run | Evaluation | str | Path


def _path(source: Source) -> Path | str:
    """Return the folder of a run or an evaluation; a path, or a model's name, as it is."""
    if isinstance(source, Run):
        return source.path
    return source.folder if isinstance(source, Evaluation) else source


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

    `task` is a name, a task object, or by default the run's own task. The same call resumes an interrupted evaluation.
    The result and its completions are in the folder `out`, or in a new one in `evals`.
    """
    from groupwise.evals.evaluate import Questions, check_task, make_engine, task_name
    from groupwise.evals.evaluate import evaluate as carry_out
    from groupwise.evals.evaluate import task_options as options_of
    from groupwise.evals.subject import open_subject
    from groupwise.tasks.functions import task_of

    if isinstance(task, str):
        check_task(task)
    subject = open_subject(str(_path(model)), checkpoint)
    own = subject.recipe.task if subject.recipe else None
    if task is None and own is None:
        raise ConfigError(f"evaluate {model}: name a task; only a run has one of its own")
    reward_names, rewards = named_rewards(reward, "evaluate")
    given = None
    if task is None or isinstance(task, str):
        name = task or own.name  # type: ignore[union-attr]
        options = {**options_of(name, [name], [], subject.recipe), **(task_options or {})}
    else:
        name, options, given = named_task(task, task_options)
    if own is not None and own.reward and name == own.name:
        # The functions that were passed are those of the run, whose recipe has their weights.
        reward_names = own.reward  # type: ignore[assignment]
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
    made = task_of(TaskConfig(name=task_name(name), options=options, reward=reward_names), rewards, given)
    folder = None if out is None else Path(out)
    return Evaluation(*carry_out(subject, make_engine(subject), questions, out=folder, task=made))


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
    from groupwise.evals.sample import judge
    from groupwise.evals.sample import sample as draw

    how: dict[str, Any] = {"n": n, "temperature": temperature, "max_new_tokens": max_new_tokens, "seed": seed}
    return judge(draw(str(_path(model)), question, checkpoint=checkpoint, **how), question, None, {})


def export(model: Run | str | Path, out: str | Path, *, checkpoint: str | None = None, use_ema: bool = False) -> Path:
    """Write a run's weights, or any model, as a Hugging Face folder that `transformers` loads. Return the folder.

    `checkpoint` is "best" (by held-out pass@1, the default), "last", or a name.
    """
    from groupwise.models.export import export_model, export_run

    path = Path(_path(model))
    if (path / layout.RECIPE).is_file():
        export_run(path, Path(out), checkpoint=checkpoint or "best", use_ema=use_ema)
    elif checkpoint is not None or use_ema:
        raise ConfigError(f"export {model}: a checkpoint or the moving average can be named for a run directory only")
    else:
        export_model(str(model), Path(out))
    return Path(out)


def report(sources: Source | Iterable[Source], path: str | Path | None = None) -> Path:
    """Write one HTML page about runs and evaluations, with a JSON file of the same data. Return the page's path.

    By default it is `report.html` in the first of them.
    """
    from groupwise.web.report.report import PAGE, make_report, write_report

    many = [sources] if isinstance(sources, (str, Path)) or not isinstance(sources, Iterable) else list(sources)
    folders = [Path(_path(source)) for source in many]
    page = folders[0] / PAGE if path is None else Path(path)
    made = make_report(folders)
    for error in made.errors:
        warnings.warn(f"not in the report: {error}", stacklevel=2)
    write_report(made, page)
    return page


def diagnose(run: Run | str | Path) -> tuple[Finding, ...]:
    """Return what is wrong with a run, what it means, and which recipe key to change; the worst first."""
    from groupwise.doctor import examine, read_stages

    return examine(read_stages(run if isinstance(run, Run) else Run(Path(run))))


def compare(first: Source, second: Source) -> Comparison:
    """Compare two evaluations of the same problems, paired by problem. A run stands for its newest evaluation."""
    from groupwise.evals import compare

    return compare.compare(*(compare.read_side(str(_path(side))) for side in (first, second)))


def plan(
    recipe: Recipe | str | Path,
    gpu: str = "this",
    *,
    ranks: int = 1,
    memory_gib: float | None = None,
    prompt_tokens: int | None = None,
    mean_tokens: float | None = None,
) -> Plan:
    """Plan a recipe's memory and time on a GPU (such as "4090" or "h200"), before it runs."""
    from groupwise.planner.make_plan import make_plan
    from groupwise.planner.measure import choose_gpu
    from groupwise.planner.shapes import find_shape

    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    chosen, speed = choose_gpu(gpu, memory_gib=memory_gib)
    shape = find_shape(recipe.model)
    return make_plan(
        recipe, shape, chosen, prompt_tokens=prompt_tokens, mean_tokens=mean_tokens, ranks=ranks, speed=speed
    )
