"""A stand-in for `groupwise train`: takes its arguments, writes a run directory, and behaves as FAKE_TRAIN says.

FAKE_TRAIN is JSON: "ARM/seed-S" → finish (the default), fail, wait (until SIGTERM, then save; resumed it finishes),
deaf (the same without listening), meet (until another run has begun, then finish). RUN/starts has a line per start, and
is written once signals are handled.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from pathlib import Path

from groupwise.config import Recipe, RlStage, dump_toml, load_recipe, make_recipe, to_table
from groupwise.runs.reader import Run
from groupwise.runs.writer import RunLog
from groupwise.types import EvalRecord, StepRecord

PATIENCE_S = 60.0


class Stopped(Exception):
    pass


def stop(number: int, frame: object) -> None:
    raise Stopped


def score_of(recipe: Recipe) -> float:
    """Best at a learning rate of 1e-4."""
    stage = recipe.stages[-1]
    assert isinstance(stage, RlStage)
    return max(0.0, 1 - abs(math.log10(stage.optimizer.learning_rate) + 4) / 4)


def write_eval(log: RunLog, step: int, score: float) -> None:
    record = EvalRecord(
        step=step, stage="grpo", pass_at_1=score, low=0.0, high=1.0, num_problems=20, rollouts_per_problem=1,
        temperature=0.0, mean_reward=score, mean_tokens=3.0, truncated_share=0.0, unparsed_share=0.0, error_share=0.0,
        timed_out_share=0.0, seconds=0.1,
    )  # fmt: skip
    log.write_eval(record, [])


def main(arguments: list[str]) -> int:
    is_resumed = arguments[0] == "--resume"
    run_dir = Path(arguments[1] if is_resumed else arguments[arguments.index("--run-dir") + 1])
    overrides = [arguments[index + 1] for index, word in enumerate(arguments) if word == "--set"]
    behaviour = json.loads(os.environ.get("FAKE_TRAIN", "{}")).get(f"{run_dir.parent.name}/{run_dir.name}", "finish")
    recipe = make_recipe(Run(run_dir).recipe) if is_resumed else load_recipe(Path(arguments[0]), overrides)
    log = RunLog(run_dir)
    if not is_resumed:
        log.write_recipe(dump_toml(to_table(recipe)))
    log.write_event("resumed" if is_resumed else "started")
    signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "deaf" else stop)
    try:
        log.write_step(StepRecord(1, "grpo", 1, {"reward/mean": 0.5}))
        write_eval(log, 1, score_of(recipe))
        start = {"arguments": arguments, "threads": os.environ.get("OMP_NUM_THREADS"), "pid": os.getpid()}
        with open(run_dir / "starts", "a") as file:
            file.write(json.dumps(start) + "\n")
        if behaviour == "fail":
            print("Traceback …\nOddError: \x1b[31mthe reason\x1b[0m", flush=True)
            return 3
        deadline = time.monotonic() + PATIENCE_S
        while (behaviour in ("wait", "deaf") and not is_resumed) or (
            behaviour == "meet" and len(list(run_dir.parent.parent.glob("*/*/starts"))) < 2
        ):
            if time.monotonic() > deadline:
                return 4
            time.sleep(0.01)
    except Stopped:
        log.write_event("stopped")
        return 1
    log.write_event("finished")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
