"""Run a recipe in several arms and seeds, and analyse the results.

Examples:
  groupwise sweep format-copy-study --dry-run
  groupwise sweep my-sweep.toml --jobs auto --max-minutes 120
  groupwise sweep sweeps/my-sweep --analyse-only --plots charts
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groupwise.base.text_layout import duration
from groupwise.cli.arguments import Options, argument, json_option, set_option, takes
from groupwise.cli.printing import counted, print_json, say
from groupwise.config import ConfigError, nearest

if TYPE_CHECKING:
    from groupwise.sweeps.machine import ArmPlan
    from groupwise.sweeps.optuna_search import SearchResult
    from groupwise.sweeps.run_jobs import JobProgress, StopSwitch
    from groupwise.sweeps.spec import SearchSpec, SweepSpec
    from groupwise.sweeps.sweep_records import Arm, Sweep


@takes(
    argument("sweep", "a TOML file, or the name of a sweep that ships with groupwise", metavar="FILE"),
    argument("--dir", "directory of the sweep (default: sweeps/NAME)", type=Path),
    argument("--jobs", "runs at once; auto: as many as fit (default: as the file says, else 1)", metavar="N"),
    set_option("override a key in all arms; repeatable"),
    argument("--arms", "run only these arms", nargs="+", metavar="NAME"),
    argument("--max-minutes", "stop and save after this time; the same command resumes", type=float, within="(0, 1e7]"),
    argument("--dry-run", "only show the arms, with planned time and memory where known", default=False),
    argument("--gpu", "with --dry-run: the GPU to plan for, as in h200", default="this"),
    argument("--analyse-only", "write the report of existing runs; run nothing", default=False),
    argument("--plots", "also write each panel as PNG and SVG, with CSV", type=Path, metavar="FOLDER"),
    argument("--csv", "also write the data of the panels as CSV", type=Path, metavar="FOLDER"),
    json_option(),
)
def run(options: Options) -> int:
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
    jobs: int | str = spec.jobs
    if options.jobs is not None:
        jobs = int(options.jobs) if re.fullmatch("[0-9]{1,9}", options.jobs) else options.jobs
        check_jobs(jobs, "--jobs")
    sweep = resolve(spec, path.parent, options.settings)
    arms = _chosen(sweep, options.arms, spec)
    if not options.dry_run:
        return _carry_out(spec, sweep, arms, folder, jobs, options)
    if spec.search is None:
        return _show_arms(sweep, arms, options)
    return _show_search(spec.search, sweep, options)


def _chosen(sweep: Sweep, names: Sequence[str] | None, spec: SweepSpec) -> list[Arm]:
    if names is None:
        return list(sweep.arms)
    if spec.search is not None:
        raise ConfigError("--arms: a search finds its arms itself; drop --arms")
    known = [arm.name for arm in sweep.arms]
    for name in names:
        if name not in known:
            raise ConfigError(f"--arms {name}: no such arm; {nearest(name, known)}")
    return [arm for arm in sweep.arms if arm.name in names]


# ---- before ----


def _show_search(search: SearchSpec, sweep: Sweep, options: Options) -> int:
    from groupwise.base.json_values import plain
    from groupwise.sweeps.optuna_search import check_search

    check_search(search, sweep)
    num_runs = search.trials * len(sweep.seeds)
    if options.json:
        ranges = [
            {"name": one.name, "keys": list(one.all_keys), "low": one.low, "high": one.high}
            | {"log": one.log, "step": one.step, "choices": plain(one.choices, str)}
            for one in search.ranges
        ]
        print_json({"name": sweep.name, "runs": num_runs, "arms": [], "ranges": ranges})
        return 0
    trials, seeds = f"up to {search.trials} trials", counted(len(sweep.seeds), "seed")
    say(f"{sweep.name}: {trials} × {seeds} = {num_runs} runs of {sweep.recipe_path}")
    for one in search.ranges:
        between = f"one of {plain(one.choices, str)}" if one.choices else f"{one.low} to {one.high}"
        say(f"  {one.name}: {', '.join(one.all_keys)}: {between}", indent="    ")
    return 0


def _show_arms(sweep: Sweep, arms: Sequence[Arm], options: Options) -> int:
    """Print the arms and their plans; return 2 if there is no plan for an arm that runs on a GPU."""
    from groupwise.base.json_values import plain
    from groupwise.sweeps.machine import plan_recipes

    recipes = [sweep.recipe(arm) for arm in arms]
    need_gpu = [recipe.model.device != "cpu" for recipe in recipes]
    plans: Sequence[ArmPlan | str]
    if options.gpu == "this" and not any(need_gpu):
        plans = ["model.device is the CPU, and plans are for GPUs; name one with --gpu, such as --gpu h200"] * len(arms)
    else:
        plans = plan_recipes(recipes, options.gpu)[1]
    num_runs = len(arms) * len(sweep.seeds)
    if options.json:
        rows = [
            {"name": arm.name, "label": arm.label, "knob": arm.knob, "is_base": arm.is_base}
            | {"set": plain(arm.settings, str)}
            # A reason has none of these: null.
            | {key: getattr(plan, key, None) for key in ("run_s", "peak_bytes", "fits")}
            for arm, plan in zip(arms, plans, strict=True)
        ]
        print_json({"name": sweep.name, "seeds": list(sweep.seeds), "runs": num_runs, "arms": rows})
    else:
        seeds = counted(len(sweep.seeds), "seed")
        say(f"{sweep.name}: {len(arms)} arms × {seeds} = {num_runs} runs of {sweep.recipe_path}")
        width = max(len(arm.name) for arm in arms)
        for arm, plan in zip(arms, plans, strict=True):
            changes = [arm.recipe_path] * bool(arm.recipe_path) + list(arm.overrides)
            say(f"  {arm.name:{width}}  {_plan_words(plan)}{', '.join(changes) or 'the recipe itself'}", indent="    ")
        _print_total(sweep, plans)
    return 2 if any(isinstance(plan, str) and needs for plan, needs in zip(plans, need_gpu, strict=True)) else 0


def _plan_words(plan: ArmPlan | str) -> str:
    if isinstance(plan, str):
        return ""
    fits = "" if plan.fits else " does not fit"
    return f"{duration(plan.run_s):>7} {plan.peak_bytes / 2**30:5.1f} GiB{fits}  "


def _print_total(sweep: Sweep, plans: Sequence[ArmPlan | str]) -> None:
    reasons = list(dict.fromkeys(plan for plan in plans if isinstance(plan, str)))
    for reason in reasons[:3]:
        say(f"No plan: {reason}")
    planned = [plan.run_s for plan in plans if not isinstance(plan, str)]
    if planned and not reasons:
        total = sum(planned) * len(sweep.seeds)
        say(f"Planned: {duration(total)} one after the other, without loading times; see `groupwise plan`.")


# ---- the runs ----


def _carry_out(
    spec: SweepSpec, sweep: Sweep, arms: Sequence[Arm], folder: Path, jobs: int | str, options: Options
) -> int:
    from groupwise.runs.lock import RunLock
    from groupwise.sweeps.display import Display
    from groupwise.sweeps.folder import jobs_of, prepare, refuse_strangers
    from groupwise.sweeps.machine import place
    from groupwise.sweeps.optuna_search import SearchResult, check_search, run_search
    from groupwise.sweeps.run_jobs import JobRunner, StopSwitch
    from groupwise.sweeps.sweep_records import BASE_ARM

    refuse_strangers(folder)
    if spec.search is not None:
        check_search(spec.search, sweep)
    recipes = [sweep.recipe(arm) for arm in arms] or [sweep.recipe(BASE_ARM)]
    stop = StopSwitch(None if options.max_minutes is None else 60 * options.max_minutes)
    num_runs = (len(arms) if spec.search is None else spec.search.trials) * len(sweep.seeds)
    with RunLock(folder, "sweep"):
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
                notes = [found.end] if found.end else []
            else:
                notes = prepare(sweep, folder)
                found = SearchResult(sweep, tuple(runner.run(jobs_of(sweep, folder, arms))), None, None)
        finally:
            display.close()
        for note in notes:
            display.say(note)
        return _conclude(folder, found, num_runs, stop, options)


# ---- after ----


def _conclude(folder: Path, found: SearchResult, num_runs: int, stop: StopSwitch, options: Options) -> int:
    """Print the results and write the report; return 0 if all runs have finished, else 1."""
    from groupwise.sweeps.run_jobs import summary_of

    counts = summary_of(found.runs)
    if not options.json:
        _print_runs(found.runs)
    if stop.signal == signal.SIGINT:
        raise KeyboardInterrupt
    has_scores = any(run.score is not None for run in found.runs)
    report = _report(folder, options) if has_scores else {"findings": [], "report": None}
    best: dict[str, Any] | None = None
    if found.best is not None:
        best = {"arm": found.best.name, "set": list(found.best.overrides), "value": found.best_value}
    # A search that was stopped has not proposed all of its runs; one that ended by itself has.
    is_complete = counts["finished"] == len(found.runs) and (len(found.runs) == num_runs or found.end != "")
    if options.json:
        rows = [
            {"arm": run.job.arm.name, "seed": run.job.seed, "status": run.status, "step": run.step}
            | {"steps": run.job.total_steps, "score": run.score, "error": run.error}
            for run in found.runs
        ]
        print_json({"dir": str(folder), "counts": counts, "runs": rows, "best": best} | report)
        return 0 if is_complete else 1
    if best is not None:
        say(f"Best: {best['arm']} with {best['value']:.4g}: {', '.join(best['set'])}")
    _print_report(report)
    if not is_complete:
        say(f"Some runs have not finished. Resume with the same command; runs and their logs are in {folder}.")
    return 0 if is_complete else 1


def _print_runs(runs: Sequence[JobProgress]) -> None:
    from rich.console import Console

    from groupwise.sweeps.display import runs_table

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 200
    console.print(runs_table(runs))


def _analyse(folder: Path, options: Options) -> int:
    report = _report(folder, options)
    if options.json:
        print_json({"dir": str(folder)} | report)
    else:
        _print_report(report)
    return 0


def _report(folder: Path, options: Options) -> dict[str, Any]:
    from groupwise.sweeps.panels import write_sweep_csv, write_sweep_plots
    from groupwise.sweeps.sweep_page import write_sweep_report

    report = write_sweep_report(folder)
    if options.plots is not None:
        write_sweep_plots(folder, options.plots)
    if options.csv is not None:
        write_sweep_csv(folder, options.csv)
    return {"findings": list(report.findings), "report": str(report.path)}


def _print_report(report: dict[str, Any]) -> None:
    for finding in report["findings"]:
        say(f"- {finding}", indent="  ")
    if report["report"] is not None:
        say(f"Report: {report['report']}")
