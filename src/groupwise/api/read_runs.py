"""Read runs and results from Python: report, diagnose, compare; and plan a run before it starts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from groupwise.config import Recipe
from groupwise.runs.reader import Run

if TYPE_CHECKING:
    from groupwise.api.use_models import Evaluation
    from groupwise.doctor import Finding
    from groupwise.evals.compare import Comparison
    from groupwise.planner.make_plan import Plan


Source: TypeAlias = "Run | Evaluation | str | Path"


def report(sources: Source | Iterable[Source], path: str | Path | None = None) -> Path:
    """Write one HTML page about runs and evaluations, with a JSON file of the same data. Return the page's path.

    By default it is `report.html` in the first of them.
    """
    from groupwise.web.report.report import PAGE, make_report, write_report

    many = [sources] if isinstance(sources, (str, Path)) or not isinstance(sources, Iterable) else list(sources)
    folders = [_folder(source) for source in many]
    page = folders[0] / PAGE if path is None else Path(path)
    write_report(make_report(folders), page)
    return page


def diagnose(run: Run | str | Path) -> tuple[Finding, ...]:
    """Return what is wrong with a run, what it means, and which recipe key to change; the worst first."""
    from groupwise.doctor import examine, read_charts

    return examine(read_charts(run if isinstance(run, Run) else Run(Path(run))))


def compare(first: Source, second: Source) -> Comparison:
    """Compare two evaluations of the same problems, paired by problem. A run stands for its newest evaluation."""
    from groupwise.evals import compare

    return compare.compare(*(compare.read_side(str(_folder(side))) for side in (first, second)))


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
    from dataclasses import replace

    from groupwise.api.train_runs import load_recipe
    from groupwise.planner.gpus import find_gpu, this_gpu
    from groupwise.planner.make_plan import make_plan
    from groupwise.planner.prompts import USUAL_TOKENS
    from groupwise.planner.shapes import find_shape

    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    chosen = this_gpu()[0] if gpu == "this" else find_gpu(gpu)
    if memory_gib is not None:
        chosen = replace(chosen, memory_gib=memory_gib, taken_gib=0.0)
    tokens = USUAL_TOKENS if prompt_tokens is None else prompt_tokens
    shape = find_shape(recipe.model)
    return make_plan(recipe, shape, chosen, prompt_tokens=tokens, mean_tokens=mean_tokens, ranks=ranks)


def _folder(source: Source) -> Path:
    if isinstance(source, Run):
        return source.path
    return Path(source) if isinstance(source, (str, Path)) else source.folder
