"""Started on several ranks by test_ranks.py: trains each recipe of a folder, and goes on with each run of another."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from groupwise.config import load_recipe
from groupwise.distributed.world import join_world
from groupwise.training.pipeline import carry_out
from groupwise.training.setup import RunRequest, recipe_of
from groupwise.training.training import Training


def signal_at(step: int, number: int) -> None:
    """This rank gets a signal at the end of a step."""
    original = Training.after_step

    def after_step(self: Training, *arguments: Any, **named: Any) -> None:
        if self.position.step + 1 == step:
            os.kill(os.getpid(), number)
        original(self, *arguments, **named)

    Training.after_step = after_step  # type: ignore[method-assign]


def main(recipes: Path, runs: Path, to_resume: Path) -> None:
    world = join_world()
    for name in ("SIGKILL", "SIGTERM"):
        if world.rank == 1 and name in os.environ:
            signal_at(int(os.environ[name]), getattr(signal, name))
    for path in sorted(recipes.glob("*.toml")):
        request = RunRequest(load_recipe(path), runs / path.stem, world=world)
        assert carry_out(request) == ("SIGTERM" not in os.environ)
    for path in sorted(to_resume.iterdir()):
        assert carry_out(RunRequest(recipe_of(path), path, is_resumed=True, world=world))
    world.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
