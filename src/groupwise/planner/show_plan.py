"""A plan as text: a table of memory with bars, the result, and the assumptions."""

from __future__ import annotations

from collections.abc import Iterator

from groupwise.base.text_layout import aligned, duration, wrapped
from groupwise.planner.make_plan import Plan, StagePlan
from groupwise.planner.stage_memory import GIB

BAR_WIDTH = 24
_DOING = {"sampling": "while sampling", "scoring": "while scoring", "update": "in the update"}


def print_plan(plan: Plan) -> None:
    ranks = "" if plan.ranks == 1 else f" × {plan.ranks}"
    _say(
        f"{plan.recipe} on {plan.gpu.name}{ranks} ({plan.gpu.memory_gib:.1f} GiB): {plan.shape.kind}, "
        f"{plan.shape.parameters / 1e6:,.0f} M parameters, {plan.shape.layers} layers"
    )
    for stage in plan.stages:
        print()
        _say(f"{stage.name}: {verdict(stage)}")
        if stage.changes:
            print("These changes make it fit:", *stage.changes, sep="\n  ")
        _print_memory(stage)
        for line in details(stage):
            _say(line)
    print()
    evaluations = f"{duration(plan.evaluation_s)} of it for evaluations"
    _say(f"The run: {duration(plan.run_s)}, {evaluations}; {count(plan.run_tokens)} sampled tokens.")
    if plan.longest_run_s > plan.run_s:
        _say(
            "Groups with no signal are resampled (refill_rounds, max_rollouts_per_problem). If no group ever has "
            f"signal, the run takes {duration(plan.longest_run_s)}."
        )
    _say(
        f"A checkpoint: at most {_size(plan.checkpoint_bytes)}. Disk: {_size(plan.disk_bytes)}, for the checkpoints "
        "that are kept (checkpoints.keep_last, checkpoints.keep_best) and the one being written."
    )
    lengths = ", ".join(f"{stage.mean_tokens:,.0f}" for stage in plan.stages)
    _say(
        f"Assumptions: prompts of {plan.prompt_tokens} tokens (--prompt-tokens), completions of {lengths} tokens on "
        "average (--mean-tokens), and signal in every group; groups with no signal are not learned from and take less "
        "time."
    )
    for note in plan.notes:
        _say(f"Note: {note}.")


def _say(text: str) -> None:
    print(wrapped(text, indent="  "))


def verdict(stage: StagePlan) -> str:
    most = stage.most
    peak = f"{most.peak / GIB:.1f} GiB {_DOING[most.peak_phase]}"
    if stage.fits:
        usual = f"{stage.usual.peak / GIB:.1f} GiB at the expected lengths"
        return f"fits: at most {peak}, of {most.room / GIB:.1f} GiB; {usual}."
    if most.peak > most.room:
        reason = f"does not fit: it needs {peak}, and {most.room / GIB:.1f} GiB are available."
    else:
        reason = f"does not fit: the cache has no room for one group ({most.needed_cache / GIB:.1f} GiB)."
    if stage.changes:
        return reason
    return f"{reason} No change known to the planner makes it fit: use a smaller model or shorter completions."


def _print_memory(stage: StagePlan) -> None:
    from rich.console import Console

    phases = stage.most.phases
    names = dict.fromkeys(name for parts in phases.values() for name in parts if parts[name])
    sizes = {name: [parts.get(name, 0.0) for parts in phases.values()] for name in names}
    sizes["total"] = [sum(parts.values()) for parts in phases.values()]
    rows = [(name, *(f"{size / GIB:.2f}" if size else "" for size in row)) for name, row in sizes.items()]
    heading, *lines = aligned([("GiB, maximum", *phases), *rows])
    # Bars stand in one column, also where the last phase is empty.
    width = max(map(len, [heading, *lines]))
    console = Console(highlight=False, soft_wrap=True)
    console.print(heading, style="dim")
    for line, row in zip(lines, sizes.values(), strict=True):
        console.print(f"{line:{width}}  {bar(max(row), stage.most.room)}".rstrip())


def bar(size: float, room: float) -> str:
    """Return a bar for the share of the GPU; red if it is more than there is."""
    eighths = round(8 * BAR_WIDTH * min(1.0, size / room))
    text = "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]
    colour = "red" if size > room else "cyan"
    return f"[{colour}]{text}[/{colour}]" if text else ""


def details(stage: StagePlan) -> Iterator[str]:
    parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in stage.phases_s.items() if seconds)
    when = " with these changes" if stage.changes else ""
    yield (
        f"A step{when}: {stage.step_s:.2f} s ({parts}); {stage.rollouts:,} rollouts, {count(stage.tokens)} tokens, "
        f"{stage.tokens / stage.step_s:,.0f} tokens/s. {stage.steps:,} steps: {duration(stage.steps * stage.step_s)}."
    )
    group = ""
    if stage.fits and stage.usual.rollouts_at_once:
        group = f"; group {stage.largest_group:,}"
        yield f"{stage.usual.rollouts_at_once:,} rollouts decode at once; problems_per_step costs time, not memory."
    yield f"Largest that fits, with all else unchanged: {microbatch_words(stage)}{group}."
    doubled = ", ".join(f"{name} {times:.2f}×" for name, times in stage.scaling.items())
    yield f"Time of a step with one key doubled: {doubled}."


def microbatch_words(stage: StagePlan) -> str:
    if not stage.largest_microbatch_tokens:
        return "nothing"
    if stage.most_pack_tokens:
        return (
            f"any microbatch_tokens (packs have at most {stage.most_pack_tokens:,} tokens, so that they are recorded)"
        )
    return f"microbatch_tokens {stage.largest_microbatch_tokens:,}"


def _size(num_bytes: float) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= 0.1 * GIB else f"{num_bytes / 2**20:.1f} MiB"


def count(number: float) -> str:
    for least, unit, name in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if number >= least:
            return f"{number / unit:.3g} {name}"
    return f"{number:,.0f}"
