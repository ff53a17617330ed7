"""Carry out a run with what looks at every run while it trains: the progress display, the doctor, the audit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from groupwise.audit.held_out_gain import HeldOutWatch
from groupwise.doctor import LiveDoctor
from groupwise.runs.progress import Progress
from groupwise.runs.sinks import Sink

if TYPE_CHECKING:
    from groupwise.training.pipeline import RunRequest


def watchers() -> list[Sink]:
    """The live doctor, and the comparison of training reward with held-out scores."""
    return [LiveDoctor(), HeldOutWatch()]


def quiet_libraries() -> None:
    """Turn off the loading bars of other libraries, which would break up the progress display."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def carry_out_watched(request: RunRequest, *, progress: bool = True) -> bool:
    """Run this process's part of a request, as one rank or as all. True when the run finished."""
    from groupwise.distributed.world import join_world
    from groupwise.training.pipeline import carry_out

    quiet_libraries()
    world = join_world()
    shown = [Progress(request.recipe.total_steps)] if progress else []
    try:
        return carry_out(replace(request, sinks=[*shown, *request.sinks, *watchers()], world=world))
    finally:
        world.close()
