"""Sweeps: several runs around one recipe, and what they show."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from groupwise.sweeps.arms import Arm, Sweep
    from groupwise.sweeps.machine import ArmPlan
    from groupwise.sweeps.run_jobs import JobProgress, StopSwitch
    from groupwise.sweeps.spec import SweepSpec


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sweep = commands.add_parser("sweep", help="run a recipe in several arms and seeds, and say what they show")
    sweep.add_argument("sweep", metavar="FILE", help="a TOML file, or the name of a sweep that comes with groupwise")
    sweep.add_argument("--dir", type=Path, help="where the sweep goes; by default sweeps/NAME")
    sweep.add_argument(
        "--jobs", metavar="N", help="runs at once; `auto`: as many as fit. Default: as the file says, or 1"
    )
    sweep.add_argument("--set", action="append", default=[], metavar="a.b=c", dest="common", help="for all arms")
    sweep.add_argument("--arms", nargs="+", metavar="NAME", help="run these alone")
    sweep.add_argument("--max-minutes", type=float, metavar="M", help="then stop and save; asking again goes on")
    sweep.add_argument(
        "--dry-run", action="store_true", help="show the arms, and time and memory where there is a plan"
    )
    sweep.add_argument("--gpu", default="this", help="with --dry-run: plan for this one, as in h200; default this")
    sweep.add_argument("--analyse-only", action="store_true", help="run nothing; write the report of what is there")
    sweep.add_argument("--plots", type=Path, metavar="FOLDER", help="also each knob's panels as PNG and SVG, with CSV")
    sweep.add_argument("--csv", type=Path, metavar="FOLDER", help="also the data of the panels as CSV alone")
    sweep.add_argument("--json", action="store_true")
    sweep.set_defaults(command=_sweep)


def _sweep(options: argparse.Namespace) -> int:
    from groupwise.config import ConfigError
    from groupwise.sweeps.arms import resolve
    from groupwise.sweeps.spec import check_jobs, find_sweep, load_spec

    if options.analyse_only and options.dry_run:
        raise ConfigError("sweep: --analyse-only and --dry-run do not go together; drop one")
    if options.analyse_only and Path(options.sweep).is_dir():
        return _analyse(Path(options.sweep), options)
    path = find_sweep(options.sweep)
    spec = load_spec(path)
    folder = options.dir or Path("sweeps") / spec.name
    if options.analyse_only:
        return _analyse(folder, options)
    if options.max_minutes is not None and not options.max_minutes > 0:
        raise ConfigError(f"--max-minutes {options.max_minutes:g}: must be above 0")
    jobs: int | str = spec.jobs
    if options.jobs is not None:
        jobs = int(options.jobs) if options.jobs.isdecimal() else options.jobs
        check_jobs(jobs, "--jobs")
    sweep = resolve(spec, path.parent, options.common)
    arms = _chosen(sweep, options.arms, spec)
    if options.dry_run:
        return _dry_run(spec, sweep, arms, options)
    return _carry_out(spec, sweep, arms, folder, jobs, options)


def _chosen(sweep: Sweep, names: Sequence[str] | None, spec: SweepSpec) -> list[Arm]:
    from groupwise.config import ConfigError, nearest

    if names is None:
        return list(sweep.arms)
    if spec.search is not None:
        raise ConfigError("--arms: a search finds its arms itself; drop --arms")
    by_name = {arm.name: arm for arm in sweep.arms}
    for name in names:
        if name not in by_name:
            raise ConfigError(f"--arms {name}: no such arm; {nearest(name, by_name)}")
    return [arm for arm in sweep.arms if arm.name in names]


# ---- before ----


def _dry_run(spec: SweepSpec, sweep: Sweep, arms: Sequence[Arm], options: argparse.Namespace) -> int:
    import json

    from groupwise.sweeps.arms import json_value
    from groupwise.sweeps.optuna_search import check_search

    if spec.search is not None:
        check_search(spec.search, sweep)
        num_runs = spec.search.trials * len(sweep.seeds)
        if options.json:
            print(json.dumps({"name": sweep.name, "runs": num_runs, "arms": [], "ranges": _ranges(spec)}))
            return 0
        trials = f"up to {spec.search.trials} trials"
        print(f"{sweep.name}: {trials} × {_seeds(sweep)} = {num_runs} runs of {sweep.recipe_path}")
        for row in _ranges(spec):
            between = f"one of {row['choices']}" if row["choices"] else f"{row['low']} to {row['high']}"
            print(f"  {row['name']}: {', '.join(row['keys'])}: {between}")
        return 0
    plans = _plans(sweep, arms, options.gpu)
    num_runs = len(arms) * len(sweep.seeds)
    if options.json:
        rows = [
            {"name": arm.name, "label": arm.label, "knob": arm.knob, "is_base": arm.is_base}
            | {"set": {key: json_value(value) for key, value in arm.settings.items()}}
            | _plan_json(plan)
            for arm, plan in zip(arms, plans, strict=True)
        ]
        print(json.dumps({"name": sweep.name, "seeds": list(sweep.seeds), "runs": num_runs, "arms": rows}))
        return 0
    print(f"{sweep.name}: {len(arms)} arms × {_seeds(sweep)} = {num_runs} runs of {sweep.recipe_path}")
    width = max(len(arm.name) for arm in arms)
    for arm, plan in zip(arms, plans, strict=True):
        print(f"  {arm.name:{width}}  {_plan_words(plan)}{_begins_with(arm)}")
    _print_total(sweep, plans)
    return 0


def _begins_with(arm: Arm) -> str:
    words = ([arm.recipe_path] if arm.recipe_path else []) + list(arm.overrides)
    return ", ".join(words) or "the recipe itself"


def _print_total(sweep: Sweep, plans: Sequence[ArmPlan | str]) -> None:
    from groupwise.base.durations import duration

    reasons = list(dict.fromkeys(plan for plan in plans if isinstance(plan, str)))
    for reason in reasons[:3]:
        print(f"No plan: {reason}")
    planned = [plan for plan in plans if not isinstance(plan, str)]
    if planned and not reasons:
        total = sum(plan.run_s for plan in planned) * len(sweep.seeds)
        print(f"Planned: {duration(total)} one after the other, loading not counted; see `groupwise plan`.")


def _seeds(sweep: Sweep) -> str:
    return f"{len(sweep.seeds)} seed{'s' if len(sweep.seeds) > 1 else ''}"


def _ranges(spec: SweepSpec) -> list[dict[str, Any]]:
    from groupwise.sweeps.arms import json_value

    assert spec.search is not None
    return [
        {"name": one.name, "keys": list(one.all_keys), "low": one.low, "high": one.high}
        | {"log": one.log, "step": one.step, "choices": json_value(list(one.choices))}
        for one in spec.search.ranges
    ]


def _plans(sweep: Sweep, arms: Sequence[Arm], gpu: str) -> Sequence[ArmPlan | str]:
    from groupwise.sweeps.machine import plan_recipes

    recipes = [sweep.recipe(arm) for arm in arms]
    if gpu == "this" and all(recipe.model.device == "cpu" for recipe in recipes):
        return ["model.device is the CPU, and the planner knows GPUs"] * len(arms)
    return plan_recipes(recipes, gpu)[1]


def _plan_json(plan: ArmPlan | str) -> dict[str, Any]:
    if isinstance(plan, str):
        return {"run_s": None, "peak_bytes": None, "fits": None}
    return {"run_s": plan.run_s, "peak_bytes": plan.peak_bytes, "fits": plan.fits}


def _plan_words(plan: ArmPlan | str) -> str:
    from groupwise.base.durations import duration

    if isinstance(plan, str):
        return ""
    fits = "" if plan.fits else " does not fit"
    return f"{duration(plan.run_s):>7} {plan.peak_bytes / 2**30:5.1f} GiB{fits}  "


# ---- the runs ----


def _carry_out(
    spec: SweepSpec, sweep: Sweep, arms: Sequence[Arm], folder: Path, jobs: int | str, options: argparse.Namespace
) -> int:
    from groupwise.sweeps.arms import BASE_ARM
    from groupwise.sweeps.display import Display
    from groupwise.sweeps.folder import jobs_of, prepare, refuse_strangers
    from groupwise.sweeps.machine import place
    from groupwise.sweeps.optuna_search import check_search, run_search
    from groupwise.sweeps.run_jobs import JobRunner, StopSwitch

    refuse_strangers(folder)
    if spec.search is not None:
        check_search(spec.search, sweep)
    recipes = [sweep.recipe(arm) for arm in arms] or [sweep.recipe(BASE_ARM)]
    stop = StopSwitch(None if options.max_minutes is None else 60 * options.max_minutes)
    num_runs = (len(arms) if spec.search is None else spec.search.trials) * len(sweep.seeds)
    with _locked(folder):
        placement, reason = place(sweep, recipes, jobs)
        display = Display(num_runs)
        runner = JobRunner(
            folder, placement=placement, stop=stop, watcher=display, keeps_checkpoints=spec.keep_checkpoints
        )
        try:
            if reason:
                display.say(reason)
            if spec.search is not None:
                found = run_search(spec.search, sweep, folder, runner, stop, placement.at_once)
                ended = Ended(found.runs, len(found.runs) == num_runs or bool(found.end), found.best, found.best_value)
                notes = [found.end] if found.end else []
            else:
                notes = prepare(sweep, folder)
                ended = Ended(runner.run(jobs_of(sweep, folder, arms)), True)
        finally:
            display.close()
        for note in notes:
            display.say(note)
        return _conclude(folder, ended, stop, options)


@dataclass(frozen=True)
class Ended:
    runs: Sequence[JobProgress]
    is_all: bool
    """Whether these are all runs that were asked for; a search that was stopped has not thought of all."""
    best: Arm | None = None
    best_value: float | None = None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    from groupwise.runs.lock import RunInUse, RunLock, read_holder

    with ExitStack() as stack:
        try:
            stack.enter_context(RunLock(folder))
        except RunInUse:
            holder = read_holder(folder)
            who = "another process" if holder is None else f"process {holder.pid} on {holder.host}"
            raise RunInUse(f"the sweep {folder} is being run by {who}; wait for it, or take another --dir") from None
        yield


# ---- after ----


def _conclude(folder: Path, ended: Ended, stop: StopSwitch, options: argparse.Namespace) -> int:
    """0 when all runs have finished, 1 when some have not."""
    import json
    import signal

    from groupwise.sweeps.run_jobs import summary_of

    runs = ended.runs
    counts = summary_of(runs)
    if not options.json:
        _print_runs(runs)
    if stop.signal == signal.SIGINT:
        raise KeyboardInterrupt
    has_scores = any(run.score is not None for run in runs)
    report = _report(folder, options) if has_scores else {"findings": [], "report": None}
    best: dict[str, Any] | None = None
    if ended.best is not None:
        best = {"arm": ended.best.name, "set": list(ended.best.overrides), "value": ended.best_value}
    is_complete = ended.is_all and counts["finished"] == len(runs)
    if options.json:
        rows = [
            {"arm": run.job.arm.name, "seed": run.job.seed, "status": run.status, "step": run.step}
            | {"steps": run.job.total_steps, "score": run.score, "error": run.error}
            for run in runs
        ]
        print(json.dumps({"dir": str(folder), "counts": counts, "runs": rows, "best": best} | report))
        return 0 if is_complete else 1
    if best is not None:
        print(f"Best: {best['arm']} with {best['value']:.4g}: {', '.join(best['set'])}")
    _print_report(report)
    if not is_complete:
        print(f"Not all is done. Go on with the same command; runs and their logs are in {folder}.")
    return 0 if is_complete else 1


def _print_runs(runs: Sequence[JobProgress]) -> None:
    from rich.console import Console

    from groupwise.sweeps.display import runs_table

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 200
    console.print(runs_table(runs))


def _analyse(folder: Path, options: argparse.Namespace) -> int:
    import json

    report = _report(folder, options)
    if options.json:
        print(json.dumps({"dir": str(folder)} | report))
    else:
        _print_report(report)
    return 0


def _report(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    from groupwise.sweeps.sweep_page import write_sweep_csv, write_sweep_plots, write_sweep_report

    report = write_sweep_report(folder)
    if options.plots is not None:
        write_sweep_plots(folder, options.plots)
    if options.csv is not None:
        write_sweep_csv(folder, options.csv)
    return {"findings": list(report.findings), "report": str(report.path)}


def _print_report(report: dict[str, Any]) -> None:
    from groupwise.base.harmless import printable

    for finding in report["findings"]:
        print(printable(f"- {finding}"))
    if report["report"] is not None:
        print(f"Report: {report['report']}")
