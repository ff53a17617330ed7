"""Score a model on tasks, with confidence intervals.

Examples:
  groupwise eval runs/mine
  groupwise eval runs/mine --task gsm8k --n 8 --k 1,4,8 --out evals/trained
  groupwise eval Qwen/Qwen2.5-0.5B-Instruct --task math500 --limit 100
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groupwise.base.signals import StopControl
from groupwise.cli.arguments import (
    SEEDS,
    TASK,
    Options,
    argument,
    json_option,
    parse_numbers,
    table_of,
    takes,
    task_option,
)
from groupwise.cli.printing import print_json, print_table, say
from groupwise.config import ConfigError

if TYPE_CHECKING:
    from groupwise.evals.evaluate import ProgressCallback, Questions
    from groupwise.runs.results import Result


@takes(
    argument("model", "a run directory, a hub id, a model folder, an adapter folder, a .gguf file, or tiny-…"),
    argument(
        "--task", f"{TASK}, or math500, sql, general; repeatable (default: the run's own task)", default=[], metavar="T"
    ),
    argument("--n", "completions per problem (default: the largest --k)", type=int, within="[1, 1e6]"),
    argument("--k", "report pass@k and maj@k for these k (default: 1)", default="", metavar="1,4,8"),
    argument("--checkpoint", "of a run: best, last, or a name (default: best)"),
    argument("--limit", "use only the first N problems; 0: all", default=0, metavar="N", within="[0, 1e9]"),
    argument("--split", "which problems to use", default="held_out", choices=("held_out", "train")),
    argument(
        "--temperature",
        "0 is greedy (default: 0 for one completion per problem, else 1)",
        type=float,
        within="[0, 100]",
    ),
    argument("--greedy", "also evaluate one greedy completion per problem, as a second result", default=False),
    argument("--max-new-tokens", "tokens per completion (default: the run's or 1024)", default=0, within="[0, 1e7]"),
    argument("--seed", "sampling seed", default=0, within=SEEDS),
    task_option("set a task option; TASK.key=value for one of several tasks; repeatable"),
    argument(
        "--chat-template-option",
        "an option of the model's chat template, as in enable_thinking=false; not for runs, which have their own",
        default=[],
        metavar="name=value",
    ),
    argument("--out", "folder of the result, or parent folder of several results (default: inside evals/)", type=Path),
    json_option("print the result.json of each task, one per line"),
)
def run(options: Options) -> int:
    from groupwise.evals.evaluate import check_task, evaluate, make_engine
    from groupwise.evals.subject import open_subject
    from groupwise.runs.results import result_to_json

    # Checked before a model is loaded, so that a typo is reported at once.
    ks = tuple(sorted(set(parse_numbers(options.k or "1", "--k", "1,4,8", int, "[1, 1e6]"))))
    for task in options.task:
        check_task(task)
    subject = open_subject(options.model, options.checkpoint, _template_options(options.chat_template_option))
    questions = _questions(options, ks, subject)
    engine = make_engine(subject)
    control = StopControl()
    out, root = (options.out, Path("evals")) if len(questions) == 1 else (None, options.out or Path("evals"))
    for asked in questions:
        with _progress(asked.task) as progress:
            folder, result = evaluate(subject, engine, asked, out=out, root=root, control=control, progress=progress)
        if not result.is_finished:
            say(f"Stopped. Run the same command to resume; the completions so far are in {folder}", to=sys.stderr)
            return 1
        if options.json:
            print_json(result_to_json(result) | {"folder": str(folder)})
        else:
            _show(asked.task, result, folder)
    return 0


def _questions(options: Options, ks: tuple[int, ...], subject: Any) -> list[Questions]:
    from groupwise.evals.evaluate import Questions, task_options

    tasks = options.task or ([subject.recipe.task.name] if subject.recipe else [])
    if not tasks:
        raise ConfigError(f"eval {options.model}: name a task with --task; only a run directory has its own task")
    if len(set(tasks)) < len(tasks):
        raise ConfigError(f"eval --task: {', '.join(tasks)}: name each task once")
    n = max(ks) if options.n is None else options.n
    sampled: list[dict[str, Any]] = [{"n": n, "ks": ks, "temperature": options.temperature}]
    if options.greedy:
        if n == 1 and not options.temperature:
            raise ConfigError(
                "eval --greedy: one completion per problem is greedy already; raise --n, for example to 8"
            )
        sampled.insert(0, {"n": 1, "ks": (1,), "temperature": 0.0})
    shared = {key: getattr(options, key) for key in ("split", "limit", "max_new_tokens", "seed")}
    return [
        Questions(task=task, options=task_options(task, tasks, options.settings, subject.recipe), **shared, **how)
        for task in tasks
        for how in sampled
    ]


@contextmanager
def _progress(task: str) -> Iterator[ProgressCallback]:
    from rich.console import Console
    from rich.progress import Progress as Bar

    # On stderr, because stdout carries the result and may be redirected to a file.
    with Bar(console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task(task, total=None)
        yield lambda done, count: bar.update(row, completed=done, total=count)


def _show(task: str, result: Result, folder: Path) -> None:
    from groupwise.runs.results import say_estimate

    sampling = result.sampling
    how = "greedy" if sampling["temperature"] == 0 else f"{sampling['n']} at temperature {sampling['temperature']:g}"
    say(f"{result.model['path']} on {task}, {how}")
    whole = [
        (name, *say_estimate(name, found), f"{found.n:,}" + (f" ({found.left_out} left out)" if found.left_out else ""))
        for name, found in result.scores.items()
    ]
    by_kind = [
        [
            (f"{name}, {kind} {key}", *say_estimate(name, found), f"{found.n:,}")
            for key, scores in parts.items()
            for name, found in list(scores.items())[:1]
        ]
        for kind, parts in result.by.items()
    ]
    print_table(("score", "value", "95 % interval", "problems"), [whole, *by_kind])
    found = result.contamination
    if found and found["overlaps"]:
        say(
            f"{found['exact']} of these problems are in the training split word for word, {found['near']} nearly so: "
            "see contamination in result.json"
        )
    say(str(folder))


def _template_options(given: list[str]) -> dict[str, Any]:
    for option in given:
        if "=" not in option:
            raise ConfigError(f"--chat-template-option {option}: write name=value, for example enable_thinking=false")
    return table_of(given)
