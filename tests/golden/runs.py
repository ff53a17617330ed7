"""The golden runs: short trainings on a CPU whose every number is kept in `tests/golden/expected`.

    python -m tests.golden.runs NAME FOLDER     train NAME in FOLDER and print its numbers as JSON
    python -m tests.golden.runs --write         rewrite `expected`, after a change that is meant to move numbers
    python -m tests.golden.runs --write-old     rewrite `old_run`, the stopped run that later versions must resume

A golden run has a process of its own, with arithmetic that does not depend on the processor: one thread, the baseline
code paths of torch, MKL and oneDNN, and square roots by numpy. (Those of MKL start from an approximation, which Intel
and AMD processors compute differently.) So the same bits come out on every x86-64 machine with FMA.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
EXPECTED = HERE / "expected"
OLD_RUN = HERE / "old_run"

PORTABLE_ARITHMETIC = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}

TINY = {"hidden_size": 32, "intermediate_size": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1}
MODEL = {"path": "tiny-qwen3", "device": "cpu", "dtype": "float32", "tiny": TINY | {"context_tokens": 128}}
LETTERS = {"name": "tests.integration.toy_task:EvenLetters"}
COUNTDOWN = {
    "name": "countdown",
    "options": {"style": "terse", "think": False, "max_numbers": 3, "num_train": 30, "num_held_out": 6},
}
SFT = {"algorithm": "sft", "steps": 3, "demonstrations_per_step": 4, "optimizer": {"learning_rate": 1e-3}}
GRPO = {
    "algorithm": "grpo",
    "steps": 3,
    "problems_per_step": 4,
    "rollouts_per_problem": 4,
    "sampling": {"max_new_tokens": 8},
    "optimizer": {"learning_rate": 1e-3},
}
STOPPING = {"max_new_tokens": 8, "stop_strings": ["b", "d", "f", "h", "2", "4", "6", "8"]}
TWO_EPOCHS = {"problems_per_update": 2, "epochs_per_batch": 2, "kl": {"coefficient": 0.05}}

RECIPES: dict[str, dict[str, Any]] = {
    "two-epochs": {"task": LETTERS, "stages": [SFT, GRPO | TWO_EPOCHS]},
    "lora": {
        "model": MODEL | {"ema_decay": 0.9, "lora": {"rank": 2, "dropout": 0.1}},
        "task": LETTERS,
        "stages": [SFT, GRPO | {"algorithm": "dapo", "kl": {"coefficient": 0.05, "schedule": "target"}}],
        "evaluation": {"every_steps": 2, "num_problems": 6, "use_ema": True},
    },
    "staged": {
        "task": LETTERS,
        "stages": [GRPO | {"sampling": STOPPING}, SFT | {"source": "rollouts"}, GRPO | {"start_from": "best"}],
    },
    "old": {
        "model": MODEL | {"tiny": TINY | {"num_layers": 1, "context_tokens": 128}},
        "task": COUNTDOWN,
        "stages": [SFT, GRPO | TWO_EPOCHS],
        "checkpoints": {"every_steps": 2, "keep_last": 1},
    },
}
"""What is trained. "demo" is the demo's recipe, cut short, and "resumed" is "two-epochs", stopped and resumed."""

NAMES = ("demo", *RECIPES)

DEMO = (
    *("stages.sft.steps=6", "stages.sft.demonstrations_per_step=16", "stages.sft.optimizer.warmup_steps=2"),
    *("stages.grpo.steps=6", "stages.grpo.problems_per_step=8", "stages.grpo.rollouts_per_problem=4"),
    *("task.options.num_train=200", "task.options.num_held_out=24"),
    *("evaluation.every_steps=4", "evaluation.num_problems=24", "logging.tokens_every_steps=3"),
)


def recipe_of(name: str) -> Any:
    from groupwise.config import find_recipe, load_recipe, make_recipe

    if name == "demo":
        return load_recipe(find_recipe("demo"), DEMO)
    table = {
        "name": "golden",
        "model": MODEL,
        "evaluation": {"every_steps": 2, "num_problems": 6},
        "checkpoints": {"every_steps": 2},
        "logging": {"tokens_every_steps": 1},
    }
    return make_recipe(table | RECIPES[name])


def numbers_of(run_dir: Path) -> dict[str, Any]:
    """Everything in a finished run that does not depend on the clock, and a digest of its final weights and moments."""
    from tests.integration.conftest import eval_lines, metrics_lines, rollout_texts, state_digest

    return {
        "metrics": metrics_lines(run_dir),
        "evals": eval_lines(run_dir),
        "rollouts": {
            name: [json.loads(line) for line in text.splitlines()] for name, text in rollout_texts(run_dir).items()
        },
        "state": state_digest(run_dir),
    }


def train_stopped(recipe: Any, run_dir: Path, update: int) -> None:
    """Train, and be told to stop in the `update`-th optimizer update."""
    from groupwise.training import pipeline
    from groupwise.training.training import Training

    original, count = Training.after_update, 0

    def stopping(self: Training, stats: Any) -> None:
        nonlocal count
        count += 1
        if count == update:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
        original(self, stats)

    Training.after_update = stopping  # type: ignore[method-assign]
    try:
        if pipeline.train(recipe, run_dir):
            raise RuntimeError(f"the run ended before update {update}")
    finally:
        Training.after_update = original  # type: ignore[method-assign]


def use_exact_square_roots() -> None:
    """Replace MKL's square roots by correctly rounded ones."""
    import numpy as np
    import torch

    def square_root(x: Any) -> Any:
        return torch.from_numpy(np.sqrt(x.numpy()))

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings(action="ignore"):  # that a kernel is replaced
        library.impl("sqrt", square_root, "CPU")
        library.impl("sqrt_", lambda x: x.copy_(square_root(x)), "CPU")
        library.impl("sqrt.out", lambda x, *, out: out.copy_(square_root(x)), "CPU")
    globals()["_kept"] = library  # the replacement ends with this object


def train(name: str, run_dir: Path) -> None:
    from groupwise.training import pipeline

    use_exact_square_roots()
    if name == "resumed":
        train_stopped(recipe_of("two-epochs"), run_dir, 3 + 4 + 2)
        pipeline.resume(run_dir)
    elif name == "old-resumed":
        shutil.copytree(OLD_RUN, run_dir)
        pipeline.resume(run_dir)
    else:
        pipeline.train(recipe_of(name), run_dir)


def run_apart(*arguments: str) -> str:
    """Run this module in a process with portable arithmetic; what it prints last."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.golden.runs", *arguments],
        env=os.environ | PORTABLE_ARITHMETIC,
        cwd=HERE.parents[1],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=280,
    )
    return result.stdout.splitlines()[-1]


def expected_of(name: str) -> dict[str, Any]:
    with gzip.open(EXPECTED / f"{name}.json.gz", "rt") as file:
        numbers: dict[str, Any] = json.load(file)
    return numbers


def write_expected(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = run_apart(name, str(Path(folder) / name))
    EXPECTED.mkdir(exist_ok=True)
    # mtime=0: the same numbers are the same bytes.
    (EXPECTED / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    print(name, hashlib.sha256(text.encode()).hexdigest()[:16])


def main(arguments: list[str]) -> None:
    if arguments == ["--write"]:
        for name in (*NAMES, "old-resumed"):
            write_expected(name)
    elif arguments == ["--write-old"]:
        run_apart("--stop-old")
    elif arguments == ["--stop-old"]:
        use_exact_square_roots()
        shutil.rmtree(OLD_RUN, ignore_errors=True)
        train_stopped(recipe_of("old"), OLD_RUN, 3 + 4 + 2)
        print(f"wrote {OLD_RUN}")
    else:
        name, folder = arguments
        train(name, Path(folder))
        print(json.dumps(numbers_of(Path(folder))))


if __name__ == "__main__":
    main(sys.argv[1:])
