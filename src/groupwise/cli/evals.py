"""Commands about how good a model is: evaluate it, compare evaluations, look for training problems among the tests."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groupwise.cli.libraries import quiet_libraries
from groupwise.cli.number_lists import parse_numbers

if TYPE_CHECKING:
    from groupwise.evals.compare import Comparison
    from groupwise.evals.evaluate import ProgressCallback
    from groupwise.evals.questions import Questions
    from groupwise.runs.results import Result

NUM_SHOWN = 5
"""Examples in the terminal; --json tells all."""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    evaluate = commands.add_parser("eval", help="how good a model is on tasks, with intervals")
    evaluate.add_argument(
        "model", help="a run directory, a hub id, a folder, an adapter's folder, a .gguf file, tiny-…"
    )
    evaluate.add_argument(
        "--task", action="append", default=[], dest="tasks", metavar="T",
        help="a name of `groupwise tasks`, math500, sql, general, or module:Class; several times for several tasks; by "
        "default the run's own",
    )  # fmt: skip
    evaluate.add_argument("--n", type=int, help="completions a problem; default the largest --k, or 1")
    evaluate.add_argument("--k", default="", metavar="1,4,8", help="pass@k and maj@k for these; default 1")
    evaluate.add_argument("--checkpoint", help="of a run: best (the default), last, or a name")
    evaluate.add_argument("--limit", type=int, default=0, metavar="N", help="only the first N problems")
    evaluate.add_argument("--split", choices=("held_out", "train"), default="held_out")
    evaluate.add_argument("--temperature", type=float, help="default 0 (greedy) for one completion a problem, else 1")
    evaluate.add_argument(
        "--greedy", action="store_true", help="besides --n sampled completions a problem one greedy one: two results"
    )
    evaluate.add_argument("--max-new-tokens", type=int, default=0, metavar="N", help="default as in the run, else 1024")
    evaluate.add_argument("--seed", type=int, default=0)
    evaluate.add_argument(
        "--set", action="append", default=[], metavar="key=value", dest="options",
        help="a task option; TASK.key=value for one of several tasks",
    )  # fmt: skip
    evaluate.add_argument(
        "--chat-template-option", action="append", default=[], metavar="name=value", dest="template_options",
        help="for the model's chat template, as in enable_thinking=false; a run has its own",
    )  # fmt: skip
    evaluate.add_argument("--out", type=Path, help="the result's folder, or with several results the folder of theirs")
    evaluate.add_argument("--json", action="store_true", help="result.json of each task, one a line")
    evaluate.set_defaults(command=_eval)

    compare = commands.add_parser("compare", help="results on the same problems, the first against each other one")
    compare.add_argument("sides", nargs="+", metavar="RESULT", help="a folder of `groupwise eval`, a run, or RUN@STEP")
    compare.add_argument("--json", action="store_true", help="all of it, with every problem that flipped")
    compare.set_defaults(command=_compare)

    contamination = commands.add_parser("contamination", help="which held-out problems are, or nearly are, trained on")
    contamination.add_argument("task", help="a name of `groupwise tasks`, or module:Class: what is trained on")
    contamination.add_argument("--held-out", metavar="TASK", help="whose held-out problems; by default the task's own")
    contamination.add_argument(
        "--set", action="append", default=[], metavar="key=value", dest="options",
        help="a task option; TASK.key=value for one of the two",
    )  # fmt: skip
    contamination.add_argument("--json", action="store_true")
    contamination.set_defaults(command=_contamination)


def _eval(options: argparse.Namespace) -> int:
    import json

    from groupwise.base.signals import StopControl
    from groupwise.evals.evaluate import evaluate, make_engine
    from groupwise.evals.questions import check_task
    from groupwise.evals.subject import open_subject
    from groupwise.runs.results import result_to_json

    # Read before a model is loaded: a typo is answered at once.
    ks = tuple(sorted(set(parse_numbers(options.k or "1", "--k", "1,4,8", int))))
    for task in options.tasks:
        check_task(task)
    quiet_libraries()
    subject = open_subject(options.model, options.checkpoint, _template_options(options.template_options))
    questions = _questions(options, ks, subject)
    engine = make_engine(subject)
    control = StopControl()
    for asked in questions:
        with _progress(asked.task) as progress:
            out, root = options.out, Path("evals")
            if options.out is not None and len(questions) > 1:
                out, root = None, options.out
            folder, result = evaluate(subject, engine, asked, out=out, root=root, control=control, progress=progress)
        if not result.is_finished:
            print(f"Stopped; what was drawn is kept in {folder}. The same command goes on.", file=sys.stderr)
            return 1
        if options.json:
            print(json.dumps(result_to_json(result) | {"folder": str(folder)}), flush=True)
        else:
            _show(asked.task, result, folder)
    return 0


def _questions(options: argparse.Namespace, ks: tuple[int, ...], subject: Any) -> list[Questions]:
    from groupwise.config import ConfigError
    from groupwise.evals.questions import Questions, task_options

    tasks = options.tasks or ([subject.recipe.task.name] if subject.recipe else [])
    if not tasks:
        raise ConfigError(f"eval {options.model}: name a task with --task; only a run directory has one of its own")
    if len(set(tasks)) < len(tasks):
        raise ConfigError(f"eval --task: {', '.join(tasks)}: each task once")
    n = max(ks) if options.n is None else options.n
    drawn: list[dict[str, Any]] = [{"n": n, "ks": ks, "temperature": options.temperature}]
    if options.greedy:
        if n == 1 and not options.temperature:
            raise ConfigError(
                "eval --greedy: one completion a problem is greedy already; ask for more with --n, as in 8"
            )
        drawn.insert(0, {"n": 1, "ks": (1,), "temperature": 0.0})
    alike = {
        "split": options.split,
        "limit": options.limit,
        "max_new_tokens": options.max_new_tokens,
        "seed": options.seed,
    }
    return [
        Questions(task=task, options=task_options(task, tasks, options.options, subject.recipe), **alike, **how)
        for task in tasks
        for how in drawn
    ]


@contextmanager
def _progress(task: str) -> Iterator[ProgressCallback]:
    from rich.console import Console
    from rich.progress import Progress as Bar

    # To stderr: what the command answers goes to stdout, and may go into a file.
    with Bar(console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task(task, total=None)
        yield lambda done, count: bar.update(row, completed=done, total=count)


def _show(task: str, result: Result, folder: Path) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from groupwise.base.harmless import printable
    from groupwise.runs.results import say_estimate

    sampling = result.sampling
    how = "greedy" if sampling["temperature"] == 0 else f"{sampling['n']} at temperature {sampling['temperature']:g}"
    # Not as the table's title, which breaks a long path at the table's width.
    print(printable(f"{result.model['path']} on {task}, {how}"))
    table = Table("score", "value", "95 % interval", "problems")
    for name, estimate in result.scores.items():
        value, interval = say_estimate(name, estimate)
        left_out = f" ({estimate.left_out} left out)" if estimate.left_out else ""
        table.add_row(name, value, interval, f"{estimate.n:,}{left_out}")
    for kind, parts in result.by.items():
        table.add_section()
        for key, scores in parts.items():
            name, estimate = next(iter(scores.items()))
            table.add_row(escape(printable(f"{name}, {kind} {key}")), *say_estimate(name, estimate), f"{estimate.n:,}")
    console = Console()
    console.print(table)
    found = result.contamination
    if found and found["overlaps"]:
        print(
            f"{found['exact']} of these problems are in the training set word for word, {found['near']} nearly so: see "
            "contamination in result.json"
        )
    print(folder)


def _template_options(given: list[str]) -> dict[str, Any]:
    from groupwise.config import ConfigError, apply_override

    table: dict[str, Any] = {}
    for option in given:
        if "=" not in option:
            raise ConfigError(f"--chat-template-option {option}: write name=value, for example enable_thinking=false")
        apply_override(table, option)
    return table


def _compare(options: argparse.Namespace) -> int:
    import json

    from groupwise.config import ConfigError
    from groupwise.evals.compare import compare, read_side

    if len(options.sides) < 2:
        raise ConfigError("compare: name two results or more; the first is what the others are compared with")
    first, *others = [read_side(named) for named in options.sides]
    comparisons = [compare(first, other) for other in others]
    for comparison in comparisons:
        if options.json:
            print(json.dumps(comparison.to_json()))
        else:
            _show_comparison(comparison)
    if len(comparisons) > 1 and not options.json:
        print(f"{len(comparisons)} comparisons: with more of them one is likelier to look clear by chance.")
    return 0


def _show_comparison(found: Comparison) -> None:
    from groupwise.base.harmless import printable
    from groupwise.runs.results import say_value

    print(f"{found.verdict}.")
    test = "McNemar's exact test" if found.test == "mcnemar" else "paired bootstrap"
    print(f"  pass@1 {100 * found.first_value:.1f} % → {100 * found.second_value:.1f} %; {test}, p = {found.p:.2g}")
    if found.left_out:
        print(f"  left out: {found.left_out:,} problems that are not on both sides or could not be judged")
    changed = {name: pair for name, pair in found.scores.items() if name != "pass@1" and pair[0] != pair[1]}
    for name, (before, after) in changed.items():
        print(f"  {name} {say_value(name, before)} → {say_value(name, after)}")
    for note in found.notes:
        print(f"  note: {printable(note)}")
    for word, flips in (("gained", found.gained), ("lost", found.lost)):
        print(f"  {word}: {len(flips):,}")
        for flip in flips[:NUM_SHOWN]:
            change = f"{100 * flip.before:.0f} % → {100 * flip.after:.0f} %"
            print(f"    {change}  {flip.problem_id}  {printable(flip.question)}")


def _contamination(options: argparse.Namespace) -> int:
    import json

    from groupwise.base.harmless import printable
    from groupwise.config import apply_override
    from groupwise.evals.contamination import find_contamination
    from groupwise.tasks import make_task

    other = options.held_out or options.task
    tables: dict[str, dict[str, Any]] = {options.task: {}, other: {}}
    for override in options.options:
        first, _, rest = override.partition(".")
        for name in [first] if first in tables else tables:
            apply_override(tables[name], rest if first in tables else override)
    trained, held_out = (make_task(name, tables[name]) for name in (options.task, other))
    found = find_contamination(held_out.problems("held_out"), trained.problems("train"))
    if options.json:
        print(json.dumps(found.to_json()))
        return 0
    print(found)
    for overlap in sorted(found.overlaps, key=lambda overlap: (overlap.kind, -overlap.share))[: 2 * NUM_SHOWN]:
        print(f"  {overlap.kind}, {100 * overlap.share:.0f} %: {overlap.problem_id} and {overlap.training_id}")
        print(f"    {printable(overlap.problem)}\n    {printable(overlap.training)}")
    return 0
