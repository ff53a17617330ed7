"""The planner against the real thing: six recipes, each measured by `bench step` and planned for, side by side.

    python benchmarks/make_shape.py qwen2.5-1.5b shapes/qwen2.5-1.5b
    python benchmarks/plan_bench.py --smollm SmolLM2-135M-Instruct.Q4_1.gguf --out plan-bench

Needs a GPU. Memory ought to be within 10 %, the time of a step within 25 %; the status is 1 where it is not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

RECIPES = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class Case:
    name: str
    recipe: str
    overrides: tuple[str, ...] = ()
    memory_gib: float | None = None
    is_smollm: bool = False
    times: int = 1
    """Multiplier of --steps and --warmup, so that a dozen new pack sizes are recorded before the measurement."""


CASES = (
    Case("step", str(RECIPES / "step.toml"), is_smollm=True, times=4),
    Case("format-copy", "format-copy", ("engine.name=native",), is_smollm=True, times=4),
    Case("24gib-lora", str(RECIPES / "24gib-lora.toml"), memory_gib=24),
    Case("24gib-full", str(RECIPES / "24gib-full.toml"), memory_gib=24),
    Case(
        "full-mlp",
        str(RECIPES / "24gib-full.toml"),
        (
            'model.gradient_checkpointing="mlp"',
            "stages.0.microbatch_tokens=16384",
            'stages.0.optimizer.moments="fp32"',
            "stages.0.problems_per_step=32",
            "engine.max_batch_rollouts=256",
        ),
    ),
    # Random weights earn no reward: with a distance to the reference there is something to learn.
    Case(
        "countdown",
        str(RECIPES / "countdown-small.toml"),
        ("model.path=shapes/qwen2.5-1.5b", "stages.0.kl.coefficient=0.02"),
        times=4,
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm", required=True, help="path of SmolLM2-135M-Instruct")
    parser.add_argument("--out", type=Path, default=Path("plan-bench"), help="where measured steps are kept")
    parser.add_argument("--steps", type=int, default=6, help="multiplier of the case's measured steps")
    parser.add_argument("--warmup", type=int, default=3, help="likewise")
    parser.add_argument("--only", nargs="*", help="names of cases")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    is_within = True
    for case in CASES:
        if options.only and case.name not in options.only:
            continue
        overrides = [*case.overrides, *([f"model.path={options.smollm}"] if case.is_smollm else [])]
        shared = [case.recipe, *(part for override in overrides for part in ("--set", override))]
        shared += [] if case.memory_gib is None else ["--memory-gib", str(case.memory_gib)]
        path = options.out / f"{case.name}.json"
        if not path.exists():
            counts = (str(case.times * options.steps), "--warmup", str(case.times * options.warmup))
            steps = ["--steps", *counts, "--json"]
            done = subprocess.run(_groupwise("bench", "step", *shared, *steps), stdout=subprocess.PIPE, check=True)
            path.write_bytes(done.stdout)
        print(f"--- {case.name}", flush=True)
        plan = _groupwise("plan", *shared, "--against", str(path), "--prompt-tokens", "task")
        is_within &= subprocess.run(plan, check=False).returncode == 0
    return 0 if is_within else 1


def _groupwise(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "groupwise", *arguments]


if __name__ == "__main__":
    sys.exit(main())
