"""A plan as a person reads it: a table of memory with bars, what it comes to, and what was assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from groupwise.planner.make_plan import Plan, StagePlan
from groupwise.planner.stage_memory import GIB

if TYPE_CHECKING:
    from rich.table import Table

BAR_WIDTH = 24
_DOING = {"sampling": "while sampling", "scoring": "while scoring", "update": "in the update"}


def print_plan(plan: Plan) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    ranks = "" if plan.ranks == 1 else f" × {plan.ranks}"
    console.print(
        f"[bold]{plan.recipe}[/bold] on {plan.gpu.name}{ranks} ({plan.gpu.memory_gib:.1f} GiB): {plan.shape.kind}, "
        f"{plan.shape.parameters / 1e6:,.0f} M weights, {plan.shape.layers} layers"
    )
    for stage in plan.stages:
        console.print()
        console.print(f"[bold]{stage.name}[/bold]: {verdict(stage)}", markup=True)
        console.print(memory_table(stage))
        for line in details(stage):
            console.print(line, markup=False)
    console.print()
    evaluations = f"of which evaluations {span(plan.evaluation_s)}"
    console.print(f"The run: {span(plan.run_s)}, {evaluations}; {count(plan.run_tokens)} tokens drawn.")
    if plan.longest_run_s > plan.run_s:
        console.print(
            "Groups without signal are drawn anew (refill_rounds, max_rollouts_per_problem): if none ever has any, the "
            f"run takes {span(plan.longest_run_s)}."
        )
    console.print(
        f"A checkpoint: {_size(plan.checkpoint_bytes)} at most; {_size(plan.disk_bytes)} of disk for those that are "
        "kept (checkpoints.keep_last, checkpoints.keep_best) and the one that is being written."
    )
    lengths = ", ".join(f"{stage.mean_tokens:,.0f}" for stage in plan.stages)
    console.print(
        f"Assumed: prompts of {plan.prompt_tokens} tokens (--prompt-tokens), completions of {lengths} tokens in the "
        "mean (--mean-tokens), signal in every group: those without are not learned from, and take less time."
    )
    for note in plan.notes:
        console.print(f"Note: {note}.", markup=False)


def verdict(stage: StagePlan) -> str:
    most = stage.most
    room = f"{most.room / GIB:.1f} GiB"
    peak = f"{most.peak / GIB:.1f} GiB {_DOING[most.peak_phase]}"
    if stage.fits:
        return f"fits: at most {peak}, of {room}; {stage.usual.peak / GIB:.1f} GiB with the lengths that are expected."
    if most.peak > most.room:
        reason = f"does not fit: {peak}, and there are {room}."
    else:
        reason = f"does not fit: the cache has no room for one group ({most.needed_cache / GIB:.1f} GiB)."
    if not stage.changes:
        return f"{reason} Nothing that is known here makes it fit: take a smaller model or shorter completions."
    return f"{reason} It would with {', '.join(stage.changes)}."


def memory_table(stage: StagePlan) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    phases = stage.most.phases
    table.add_column("GiB, at most")
    for phase in phases:
        table.add_column(phase, justify="right")
    table.add_column("")
    names = list(dict.fromkeys(name for parts in phases.values() for name in parts if parts[name]))
    for name in names:
        sizes = [parts.get(name, 0.0) for parts in phases.values()]
        table.add_row(name, *(_gib(size) for size in sizes), bar(max(sizes), stage.most.room))
    totals = [sum(parts.values()) for parts in phases.values()]
    table.add_row(
        "[bold]all[/bold]", *(f"[bold]{_gib(size)}[/bold]" for size in totals), bar(max(totals), stage.most.room)
    )
    return table


def bar(size: float, room: float) -> str:
    """As long as its share of the GPU; red where that is more than there is."""
    eighths = round(8 * BAR_WIDTH * min(1.0, size / room))
    text = "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]
    return f"[red]{text}[/red]" if size > room else f"[cyan]{text}[/cyan]"


def details(stage: StagePlan) -> list[str]:
    parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in stage.phases_s.items() if seconds)
    when = " with that" if stage.changes else ""
    lines = [
        f"A step{when}: {stage.step_s:.2f} s ({parts}); {stage.rollouts:,} rollouts, {count(stage.tokens)} tokens, "
        f"{stage.tokens / stage.step_s:,.0f} tokens/s. {stage.steps:,} steps: {span(stage.steps * stage.step_s)}."
    ]
    largest = [microbatch_words(stage)]
    if stage.fits and stage.usual.rollouts_at_once:
        largest.append(f"group {stage.largest_group:,}")
        lines.append(
            f"{stage.usual.rollouts_at_once:,} rollouts decode at once; problems_per_step costs time and no memory."
        )
    lines.append(f"Largest that fits, all else as it is: {', '.join(largest)}.")
    doubled = ", ".join(f"{name} {times:.2f}×" for name, times in stage.scaling.items())
    lines.append(f"Twice as much of it makes a step longer: {doubled}.")
    return lines


def microbatch_words(stage: StagePlan) -> str:
    if not stage.largest_microbatch_tokens:
        return "nothing"
    if stage.most_pack_tokens:
        return f"any microbatch_tokens (packs have {stage.most_pack_tokens:,} at most, as many as can be recorded)"
    return f"microbatch_tokens {stage.largest_microbatch_tokens:,}"


def _size(num_bytes: float) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= 0.1 * GIB else f"{num_bytes / 2**20:.1f} MiB"


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}" if size else ""


def count(number: float) -> str:
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if number >= unit:
            return f"{number / (1e3 if name == ' k' else unit):.3g}{name}"
    return f"{number:,.0f}"


def span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
