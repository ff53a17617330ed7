"""Seconds of one GPU until held-out pass@1 reaches fixed scores: one recipe, several seeds, one run after another.

    python benchmarks/time_to_accuracy.py countdown --model Qwen2.5-Coder-1.5B-Instruct --out time-to-accuracy
    python benchmarks/time_to_accuracy.py gsm8k --model Qwen2.5-Coder-0.5B-Instruct --out time-to-accuracy

Nothing else may run on the GPU. A run that is there and has ended is not made again, and one that was broken off goes
on. OUT/CASE.json is what `groupwise reach --json` prints of all seeds; further keys of the recipe go through --set.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RECIPES = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class Case:
    recipe: str
    scores: str
    overrides: tuple[str, ...]
    """Evaluated often, which `reach` does not count."""


CASES = {
    "countdown": Case(str(RECIPES / "countdown-small.toml"), "0.3,0.4,0.5", ("evaluation.every_steps=10",)),
    "gsm8k": Case(
        "gsm8k",
        "0.32,0.36,0.38",
        ("evaluation.every_steps=10", "stages.0.steps=80", "stages.0.optimizer.learning_rate=2e-6"),
    ),
}


def train_command(case: Case, run_dir: Path, seed: int, overrides: Sequence[str]) -> list[str]:
    if (run_dir / "recipe.toml").is_file():
        return groupwise("train", "--resume", str(run_dir))
    keys = [*case.overrides, f"seed={seed}", *overrides]
    return groupwise(
        "train", case.recipe, "--run-dir", str(run_dir), *(part for key in keys for part in ("--set", key))
    )


def groupwise(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "groupwise", *arguments]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=sorted(CASES))
    parser.add_argument("--model", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", action="append", default=[], metavar="a.b=c", dest="overrides")
    parser.add_argument("--out", type=Path, default=Path("time-to-accuracy"))
    options = parser.parse_args()
    case = CASES[options.case]
    run_dirs = [options.out / f"{options.case}-{seed}" for seed in options.seeds]
    for seed, run_dir in zip(options.seeds, run_dirs, strict=True):
        overrides = [f"model.path={options.model}", *options.overrides]
        status = subprocess.run(train_command(case, run_dir, seed, overrides), check=False).returncode
        if status:
            return status  # it has said why
    reached = groupwise("reach", *map(str, run_dirs), "--scores", case.scores)
    table = subprocess.run([*reached, "--json"], stdout=subprocess.PIPE, check=True)
    (options.out / f"{options.case}.json").write_bytes(table.stdout)
    return subprocess.run(reached, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
