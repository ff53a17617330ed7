"""Watch a tiny model learn on the CPU in minutes, with no download.

Examples:
  groupwise demo
  groupwise demo --seed 3 --run-dir runs/my-demo
"""

from __future__ import annotations

import time
from pathlib import Path

from groupwise.cli.arguments import SEEDS, Options, argument, takes
from groupwise.cli.printing import say
from groupwise.config import find_recipe, load_recipe


@takes(
    argument("--seed", "seed of the run", default=0, within=SEEDS),
    argument("--run-dir", "directory of the run (default: a new one in runs/)", type=Path),
)
def run(options: Options) -> int:
    from groupwise.cli.train import train_here
    from groupwise.training.setup import RunRequest

    recipe = load_recipe(find_recipe("demo"), [f"seed={options.seed}"])
    run_dir = options.run_dir or Path("runs") / time.strftime(f"demo-s{options.seed}-%Y%m%d-%H%M%S")
    say(f"groupwise demo: {recipe.description}")
    say(f"Stages: {' → '.join(stage.name for stage in recipe.stages)}. Run directory: {run_dir}\n")
    return train_here(RunRequest(recipe, run_dir))
