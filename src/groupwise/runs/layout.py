"""Names of the files in a run directory. Nothing here reads or writes.

RUN/ recipe.toml  run.json  run.lock  metrics.jsonl  evals.jsonl  events.jsonl
     rollouts/000012.jsonl        one scored group per line, one file per step
     tokens/000010.jsonl          what the step did to each token; one line per group, as in rollouts/
     eval_rollouts/000010.jsonl   as rollouts/, for the held-out problems
     checkpoints/                 see groupwise.models.checkpoint_store
     old-1/                       what `train --resume --start-over` moved aside: a run of its own, for readers
     audit/                       page.html for labelling completions, labels.jsonl: see groupwise.audit
"""

from __future__ import annotations

import re

RECIPE = "recipe.toml"
INFO = "run.json"
LOCK = "run.lock"
METRICS = "metrics.jsonl"
EVALS = "evals.jsonl"
EVENTS = "events.jsonl"
ROLLOUTS = "rollouts"
TOKENS = "tokens"
EVAL_ROLLOUTS = "eval_rollouts"
REWARDS = "rewards"
"""The source of reward functions, for people to read."""
DATA = "data"
"""Rows that were passed to `groupwise.train` as objects."""
CHECKPOINTS = "checkpoints"
OLD = "old"
"""First part of the names of folders that hold what was there before the run was started over."""
SWEEP = "sweep.json"
"""File that marks the folder of a sweep (groupwise.sweeps), which is not a run."""
SWEEP_RUNS = "runs"
"""Folder of a sweep's runs, by arm and seed."""

_ROLLOUT_FILE = re.compile(r"([0-9]{6,12})\.jsonl")
_RUN_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def validate_run_name(name: str) -> str:
    """Return `name` if it is safe as a folder, in a URL and on a command line. Raise a ValueError if not."""
    if not _RUN_NAME.fullmatch(name) or name in (".", ".."):
        raise ValueError(f"run name {name!r}: use 1 to 64 letters, digits, dots, underscores and hyphens")
    return name


def rollout_file(step: int) -> str:
    return f"{step:06d}.jsonl"


def rollout_step(file_name: str) -> int | None:
    """Return the step of a file of rollouts; None for other files."""
    match = _ROLLOUT_FILE.fullmatch(file_name)
    return int(match.group(1)) if match else None
