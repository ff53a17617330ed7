"""A request to the trainer: which run, new or resumed, with which sinks, on which rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from groupwise.config import Recipe
from groupwise.distributed.world import World
from groupwise.runs.sinks import Sink
from groupwise.scoring.scorer import ScorerMaker, make_scorer
from groupwise.tasks.functions import Reward
from groupwise.tasks.task import Task


@dataclass(frozen=True)
class RunRequest:
    recipe: Recipe
    run_dir: Path
    is_resumed: bool = False
    accept_verifier: bool = False
    """Resume although the verifier's version has changed. The change is logged."""
    memory_gib: float | None = None
    """Limit on the GPU memory of this process, for runs that share a GPU."""
    sinks: Sequence[Sink] = ()
    """Receivers of every record besides the run directory, on rank 0 only."""
    world: World = field(default_factory=World)
    make_scorer: ScorerMaker = make_scorer
    task: Task | None = None
    """The task as an object, where the one that the recipe names cannot be imported."""
    rewards: Mapping[str, Reward] = field(default_factory=dict)
    """Reward functions that cannot be imported, by the name that the recipe has for them."""
