"""Each preset on the demo's task: 50 steps from the demo's cold start, and what the doctor says of the run.

    python benchmarks/presets.py [--steps 50] [--presets NAME ...] [--out presets] [--output FILE]

The first stage of the recipe `demo` is run once. Each preset then takes the place of the second stage's algorithm, with
its own KL and the rest as in the demo. Presets with a ratio make two updates per step, since with one it is always 1. A
run that is there and has ended is not made again. Exit status 1 if the doctor found anything. It takes about a minute
per preset.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import groupwise as gw
from groupwise.config import ALGORITHMS, dump_toml, find_recipe

Row = tuple[str, str, str, str, str]
HEADER: Row = ("preset", "held-out pass@1 before", "after", "entropy before → after, nats", "the doctor's findings")


def groupwise(*arguments: str) -> None:
    command = [sys.executable, "-m", "groupwise", *arguments]
    subprocess.run(command, check=True, stdout=sys.stderr, env=os.environ | {"OMP_NUM_THREADS": "1"})


def train(recipe: Mapping[str, Any], run_dir: Path) -> None:
    if (run_dir / "recipe.toml").is_file():
        return groupwise("train", "--resume", str(run_dir))
    text = run_dir.with_suffix(".toml")
    text.write_text(dump_toml(recipe))
    groupwise("train", str(text), "--run-dir", str(run_dir))


def cold_start(demo: Mapping[str, Any], out: Path) -> Path:
    """Return the exported weights after the demo's first stage."""
    weights = out / "weights"
    if not weights.exists():
        limit = {"max_new_tokens": demo["stages"][1]["sampling"]["max_new_tokens"]}
        train({**demo, "stages": demo["stages"][:1], "evaluation": demo["evaluation"] | limit}, out / "cold-start")
        groupwise("export", str(out / "cold-start"), str(weights), "--checkpoint", "last")
    return weights


def recipe_of(preset: str, demo: Mapping[str, Any], steps: int, weights: Path) -> dict[str, Any]:
    stage = {key: value for key, value in demo["stages"][1].items() if key != "kl"}
    if ALGORITHMS[preset]["loss"]["surrogate"] != "policy_gradient":
        stage["problems_per_update"] = stage["problems_per_step"] // 2
    # One name for all: problems and rollouts are sampled by the seed and the name of the stage.
    stage |= {"algorithm": preset, "name": "rl", "steps": steps}
    return {**demo, "model": {"path": str(weights)}, "stages": [stage]}


def row_of(preset: str, run_dir: Path) -> tuple[Row, int]:
    """Return the preset's row of the table and the number of findings."""
    findings = gw.diagnose(run_dir)
    steps = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    learned = [step for step in steps if "policy/entropy_nats" in step["metrics"]]
    entropies = [step["metrics"]["policy/entropy_nats"] for step in (learned[0], learned[-1])]
    evals = [json.loads(line) for line in (run_dir / "evals.jsonl").read_text().splitlines()]
    before, after = (f"{entry['pass_at_1']:.1%}" for entry in (evals[0], evals[-1]))
    names = ", ".join(f"{finding.check} ({finding.severity})" for finding in findings) or "none"
    return (preset, before, after, f"{entropies[0]:.2f} → {entropies[1]:.2f}", names), len(findings)


def page(rows: Sequence[Row], steps: int) -> str:
    table = "\n".join("| " + " | ".join(row) + " |" for row in (HEADER, ("---",) * len(HEADER), *rows))
    return (
        f"`python benchmarks/presets.py`: Python {platform.python_version()}, seed 0.\n\n"
        f"Each preset trains the demo's task for {steps} steps from the demo's cold start, with its own KL and, where\n"
        "it has a ratio, two updates per step. Held-out pass@1 is greedy on 200 problems.\n\n"
        f"{table}\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", choices=sorted(ALGORITHMS), default=list(ALGORITHMS))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("presets"))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    demo = tomllib.loads(find_recipe("demo").read_text())
    weights = cold_start(demo, options.out)
    rows, num_findings = [], 0
    for preset in options.presets:
        run_dir = options.out / preset.replace("+", "-plus")  # a run's name has no signs
        train(recipe_of(preset, demo, options.steps, weights), run_dir)
        row, found = row_of(preset, run_dir)
        rows.append(row)
        num_findings += found
    text = page(rows, options.steps)
    if options.output:
        options.output.write_text(text)
    print(text)
    return 1 if num_findings else 0


if __name__ == "__main__":
    sys.exit(main())
