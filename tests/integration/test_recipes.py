"""Every recipe that ships runs: two steps of each stage, on a tiny model, with small data of the same shape."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.config import dump_toml, fingerprint, load_recipe, parse_recipe, to_table
from groupwise.rewards.code.score_code import shared_sandbox
from groupwise.runs.reader import Run
from groupwise.sandbox import SandboxUnavailable
from groupwise.training import pipeline, setup
from tests.factories import TINY_MODEL

RECIPES = sorted((Path(groupwise.__file__).parent / "recipes").glob("*.toml"))

SMALL_DATA = {
    "gsm8k": [{"question": f"What is {n} plus one?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(24)],
    "math-hard": [
        {"problem": f"Double ${n}$.", "solution": f"$\\boxed{{{2 * n}}}$", "answer": str(2 * n), "level": 5}
        | {"subject": "Algebra"}
        for n in range(24)
    ],
}
SMALL_COUNTS = {"num_train": 20, "num_held_out": 6}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def small_options(task: str, folder: Path) -> dict[str, Any]:
    """Where a task's own data would be."""
    if task == "mbpp":
        try:
            shared_sandbox("auto").run("")
        except SandboxUnavailable as error:
            pytest.skip(f"no isolation on this machine: {error}")
        code = [f"def add_{n}(x):\n    return x + {n}" for n in range(12)]
        tests = [[f"assert add_{n}({x}) == {x + n}" for x in range(3)] for n in range(12)]
        rows = [
            {"task_id": 605 + n if n < 8 else 11 + n, "text": f"Add {n}.", "code": code[n], "test_list": tests[n]}
            | {"test_setup_code": "", "challenge_test_list": []}
            for n in range(12)
        ]
        return {"source": write_rows(folder / "mbpp.jsonl", rows)}
    if task == "sql-jsonl":
        with sqlite3.connect(folder / "small.sqlite") as database:
            database.execute("CREATE TABLE city (name TEXT, size INTEGER)")
            database.executemany("INSERT INTO city VALUES (?, ?)", [(f"city {n}", n) for n in range(24)])
        rows = [
            {"question": f"How large is city {n}?", "sql": f"SELECT size FROM city WHERE size = {n}"} for n in range(24)
        ]
        return {"train": write_rows(folder / "sql.jsonl", rows), "database": str(folder / "small.sqlite")}
    data = SMALL_DATA.get(task)
    if data is None:
        return SMALL_COUNTS
    return {
        key: write_rows(folder / f"{key}.jsonl", part) for key, part in (("train", data[:18]), ("held_out", data[18:]))
    }


def shrink(path: Path, folder: Path) -> Any:
    """The recipe as it ships but for size: model, data, steps, tokens."""
    table = to_table(load_recipe(path))
    table["model"] = TINY_MODEL | {"lora": table["model"].get("lora")} if "lora" in table["model"] else TINY_MODEL
    table["model"] = table["model"] | {"tiny": TINY_MODEL["tiny"] | {"context_tokens": 512}}  # type: ignore[operator]
    table["task"]["options"] |= small_options(table["task"]["name"], folder)
    for stage in table["stages"]:
        stage["steps"] = 2
        if "demonstrations_per_step" in stage:
            # A tiny model that knows nothing has no correct rollouts; the source is exercised in test_stages.
            stage |= {"demonstrations_per_step": 2, "source": "task", "file": ""}
        else:
            stage |= {
                "problems_per_step": 2,
                "problems_per_update": min(stage["problems_per_update"], 1),
                "rollouts_per_problem": 2,
                "refill_rounds": min(stage["refill_rounds"], 1),
            }
            stage["sampling"]["max_new_tokens"] = 8
    table["evaluation"] |= {"num_problems": 4, "max_new_tokens": 8}
    return parse_recipe(dump_toml(table))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_runs_two_steps_of_each_stage(path: Path, tmp_path: Path) -> None:
    recipe = shrink(path, tmp_path)
    assert pipeline.train(recipe, tmp_path / "run")
    run = Run(tmp_path / "run")
    assert [record.stage for record in run.steps()] == [stage.name for stage in recipe.stages for _ in range(2)]
    assert [record.step for record in run.steps()] == list(range(1, 2 * len(recipe.stages) + 1))
    assert run.info["fingerprint"] == fingerprint(recipe)
    assert setup.recipe_of(tmp_path / "run") == recipe


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_is_named_as_its_file_and_says_what_it_is(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    assert recipe.description
