"""Started on several ranks by test_ranks.py: trains each recipe of a folder, and goes on with each run of another."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from groupwise import pipeline
from groupwise.config import load_recipe
from groupwise.distributed.world import join_world
from groupwise.training import Training


def die_at(step: int) -> None:
    """Like the kernel's out-of-memory killer: no warning, no last words."""
    original = Training.after_step

    def after_step(self: Training, *arguments: Any, **named: Any) -> None:
        if self.position.step + 1 == step:
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, *arguments, **named)

    Training.after_step = after_step  # type: ignore[method-assign]


def main(recipes: Path, runs: Path, to_resume: Path) -> None:
    world = join_world()
    if world.rank == 1 and "DIE_AT_STEP" in os.environ:
        die_at(int(os.environ["DIE_AT_STEP"]))
    for path in sorted(recipes.glob("*.toml")):
        assert pipeline.train(load_recipe(path), runs / path.stem, world=world)
    for path in sorted(to_resume.iterdir()):
        assert pipeline.resume(path, world=world)
    world.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
