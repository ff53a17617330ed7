"""The folder of an evaluation: its name, and how an interrupted evaluation is resumed in it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from groupwise.config import ConfigError
from groupwise.runs.results import Result, is_result, mend_groups, read_groups, read_result, write_result
from groupwise.types import ScoredGroup


def folder_name(result: Result, task: str) -> str:
    """Return a name that depends on everything that decides the completions, so the same command finds its folder."""
    digest = hashlib.sha256(json.dumps(result.identity(), sort_keys=True).encode()).hexdigest()[:8]
    how = "greedy" if result.sampling["temperature"] == 0 else f"n{result.sampling['n']}"
    parts = [Path(str(result.model["path"])).name, str(result.model["checkpoint"] or ""), task, how]
    safe = [re.sub(r"[^A-Za-z0-9._-]+", "-", part).strip("-.")[:40] for part in parts if part]
    return "_".join([*safe, digest])


def open_result(folder: Path, result: Result) -> Result:
    """Start a result in a folder or resume the one there. Refuse a folder that holds another evaluation."""
    if not is_result(folder):
        strangers = sorted(path.name for path in folder.iterdir() if path.name != "run.lock")
        if strangers:
            raise ConfigError(f"--out {folder}: contains {strangers[0]} but no result; choose a new folder")
        write_result(folder, result)
        return result
    before = read_result(folder)
    then, now = before.identity(), result.identity()
    for key in now:
        if then[key] != now[key]:
            raise ConfigError(
                f"--out {folder}: holds an evaluation with {key} {then[key]}, but this one has {now[key]}; choose "
                "another folder"
            )
    mend_groups(folder)
    return replace(result, cost=before.cost)


def known_groups(folder: Path, problem_ids: Iterable[str]) -> dict[str, ScoredGroup]:
    """Return the groups that an earlier call completed, by problem."""
    wanted = set(problem_ids)
    found = {scored.group.prompt.problem.id: scored for scored in read_groups(folder)}
    return {key: scored for key, scored in found.items() if key in wanted}
