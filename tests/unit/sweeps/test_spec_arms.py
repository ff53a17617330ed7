"""Arms: one at a time, all combinations, a list; equal ones; names; and the folder that remembers them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.config import ConfigError, load_recipe
from groupwise.runs import RunReadError
from groupwise.sweeps.arms import name_of, resolve
from groupwise.sweeps.folder import (
    SweepJob,
    jobs_of,
    prepare,
    read_study,
    recipe_file,
    refuse_strangers,
)
from groupwise.sweeps.spec import SWEEPS, SweepSpec, parse_spec
from groupwise.sweeps.sweep_records import Arm, Knob, Sweep, from_json, read_sweep, to_json

TOP = """
name = "small"
recipe = "demo"
seeds = [0, 1]
set = { stages.grpo.epochs_per_batch = 1, stages.grpo.kl.coefficient = 0.0 }
"""
KL = '[[knobs]]\nname = "kl"\nkey = "stages.grpo.kl.coefficient"\nvalues = [0.0, 0.1, inf]\n'
EPOCHS = '[[knobs]]\nname = "epochs"\nkey = "stages.grpo.epochs_per_batch"\nvalues = [1, 2]\n'
CLIP = '[[knobs]]\nname = "clip"\nkeys = ["stages.grpo.loss.clip_low", "stages.grpo.loss.clip_high"]\n'


def make(text: str, *overrides: str) -> Sweep:
    return resolve(parse_spec(text), Path(), overrides)


def in_knob(knob: Knob) -> list[str]:
    return [arm.name for arm in knob.arms]


def names(sweep: Sweep) -> list[str]:
    return [arm.name for arm in sweep.arms]


def test_one_at_a_time_the_base_stands_in_each_knob_and_is_run_once() -> None:
    sweep = make(TOP + KL + EPOCHS)
    assert names(sweep) == ["base", "kl-0.1", "kl-inf", "epochs-2"]
    kl, epochs = sweep.knobs
    assert [(arm.name, arm.label, arm.value) for arm in kl.arms] == [
        ("base", "0", 0.0),
        ("kl-0.1", "0.1", 0.1),
        ("kl-inf", "∞", math.inf),
    ]
    assert in_knob(epochs) == ["base", "epochs-2"]
    assert [arm.is_base for arm in sweep.arms] == [True, False, False, False]
    assert sweep.arms[2].overrides == ("stages.grpo.kl.coefficient=inf",)
    # As `groupwise train RECIPE --set …` would have it.
    by_hand = ("stages.grpo.epochs_per_batch=1", "stages.grpo.kl.coefficient=inf", "seed=5")
    assert sweep.recipe(sweep.arms[2], seed=5) == load_recipe(SWEEPS.parent / "demo.toml", by_hand)


def test_a_knob_has_settings_of_its_own() -> None:
    sweep = make(TOP + EPOCHS + CLIP + "values = [0.1, 0.2, inf]\nset = { stages.grpo.epochs_per_batch = 2 }\n")
    assert names(sweep) == ["base", "epochs-2", "clip-0.1", "clip-inf"]
    # At its own settings the default of 0.2 is another knob's arm, which stands in both.
    assert in_knob(sweep.knobs[1]) == ["clip-0.1", "epochs-2", "clip-inf"]
    stage = sweep.recipe(sweep.arms[2]).stages[1]
    assert (stage.epochs_per_batch, stage.loss.clip_low, stage.loss.clip_high) == (2, 0.1, 0.1)  # type: ignore[union-attr]


def test_several_keys_take_a_list_or_a_table() -> None:
    keys = '{ "stages.grpo.loss.clip_high" = 0.3, stages.grpo.loss.clip_low = 0.4 }'
    sweep = make(TOP + CLIP + f"values = [[0.1, 0.28], {keys}]\n")
    stages: list[Any] = [sweep.recipe(arm).stages[1] for arm in sweep.arms]
    assert [(stage.loss.clip_low, stage.loss.clip_high) for stage in stages] == [(0.1, 0.28), (0.4, 0.3)]
    assert [arm.label for arm in sweep.arms] == ["0.1 / 0.28", "clip_high 0.3, clip_low 0.4"]
    assert names(sweep)[0] == "clip-0.1-0.28"
    with pytest.raises(ConfigError, match="has 3 values for 2 keys"):
        make(TOP + CLIP + "values = [[1, 2, 3]]\n")
    with pytest.raises(ConfigError, match="are not the keys of the knob"):
        make(TOP + CLIP + "values = [{ stages.grpo.steps = 1 }]\n")


def test_a_grid_has_all_combinations() -> None:
    sweep = make(TOP.replace("seeds", 'mode = "grid"\nseeds') + KL + EPOCHS)
    assert names(sweep) == [f"kl-{kl}_epochs-{epochs}" for kl in ("0", "0.1", "inf") for epochs in (1, 2)]
    (knob,) = sweep.knobs
    assert knob.name == "kl × epochs"
    assert in_knob(knob) == names(sweep)
    assert [arm.is_base for arm in sweep.arms] == [True] + [False] * 5
    assert sweep.arms[-1].label == "kl ∞, epochs 2"


def test_a_list_is_as_it_is_written() -> None:
    sweep = make(
        TOP + '[[arms]]\nname = "a"\nlabel = "A!"\n[[arms]]\nname = "b"\nset = { stages.grpo.algorithm = "dapo" }'
    )
    assert [(arm.name, arm.label, arm.is_base) for arm in sweep.arms] == [("a", "A!", True), ("b", "b", False)]
    # The algorithm brings its own preset: the recipe is not resolved before.
    assert sweep.recipe(sweep.arms[1]).stages[1].refill_rounds == 4  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (KL.replace("0.1,", "0.1, 0.10,"), "kl: 0.1 and 0.1 are the same recipe"),
        ('[[arms]]\nname = "a"\n[[arms]]\nname = "b"\nset = { seed2 = 1 }', "unknown key"),
        ('[[arms]]\nname = "a"\n[[arms]]\nname = "b"\nset = { name = "x" }', "arms 'a' and 'b' are the same recipe"),
        ('[[arms]]\nname = "a"\n[[arms]]\nname = "b"\nset = { stages.1.epochs_per_batch = 1 }', "arms 'a' and 'b' are"),
    ],
)
def test_equal_arms_are_an_error_that_names_both(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(TOP + text)


@given(st.lists(st.one_of(st.text(), st.floats(allow_nan=False), st.integers()), min_size=1, max_size=4))
def test_names_are_safe_as_folders(values: list[Any]) -> None:
    turns = [Arm("", str(value), "knob", value, {}) for value in values]
    assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", name_of(turns))


@pytest.mark.parametrize("value", [1, 0.1, math.inf, "inf", 'a "b"\n', True, [1, 2], ["x"], {}])
def test_a_setting_survives_the_command_line_and_the_folder(value: Any) -> None:
    arm = Arm("arm", "label", "knob", "x", {"task.options.key": value})
    sweep = Sweep("small", "demo", "", (0,), (), (arm,))
    table = json.loads(json.dumps(to_json(sweep), allow_nan=False))
    assert from_json(table).arms[0].settings == {"task.options.key": value}


def test_the_folder_is_what_the_analysis_reads(tmp_path: Path) -> None:
    sweep = make(TOP + KL + EPOCHS)
    prepare(sweep, tmp_path)
    study = read_study(tmp_path)
    assert [arm.name for arm in study.arms] == names(sweep)
    assert [[arm.label for arm in knob.arms] for knob in study.knobs] == [["0", "0.1", "∞"], ["1", "2"]]
    assert study.recipe_text == sweep.recipe_text == (tmp_path / "recipe.toml").read_text()
    assert {run.path for _, run in study.runs} == {job.run_dir for job in jobs_of(sweep, tmp_path, sweep.arms)}
    assert read_sweep(tmp_path) == from_json(to_json(sweep))


def test_what_changed_between_two_sittings_is_named(tmp_path: Path) -> None:
    prepare(make(TOP + KL), tmp_path)
    before = (tmp_path / "sweep.json").read_bytes()
    with pytest.raises(ConfigError, match=r"the recipe is no longer .*stages.1.steps was 320 and is 9.*--dir"):
        prepare(make(TOP + KL, "stages.grpo.steps=9"), tmp_path)
    with pytest.raises(ConfigError, match=r"arm 'kl-0.1' is no longer .*stages.1.steps was 320 and is 7"):
        prepare(make(TOP + KL + "set = { stages.grpo.steps = 7 }"), tmp_path)
    assert (tmp_path / "sweep.json").read_bytes() == before
    # A name moves no number; new arms and seeds may join.
    assert prepare(make(TOP.replace("[0, 1]", "[0, 1, 2]") + KL + EPOCHS, "name=other"), tmp_path) == []
    (note,) = prepare(make(TOP + EPOCHS), tmp_path)
    assert "kl-0.1, kl-inf" in note


def test_a_run_directory_with_another_recipe_is_refused(tmp_path: Path) -> None:
    sweep = make(TOP + KL)
    job: SweepJob = jobs_of(sweep, tmp_path, sweep.arms)[0]
    job.run_dir.mkdir(parents=True)
    (job.run_dir / "recipe.toml").write_text((SWEEPS.parent / "demo.toml").read_text().replace("320", "319"))
    with pytest.raises(ConfigError, match=r"base/seed-0 was started with another recipe: stages.1.steps was 319"):
        prepare(sweep, tmp_path)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    refuse_strangers(tmp_path / "new")
    refuse_strangers(tmp_path)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="is not empty and not a sweep"):
        refuse_strangers(tmp_path)
    with pytest.raises(ConfigError, match="is a file"):
        refuse_strangers(tmp_path / "thesis.tex")


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": 1}', '{"format": 2}', "nonsense"])
def test_a_damaged_sweep_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(RunReadError, match=r"sweep\.json"):
        read_sweep(tmp_path)


def own_spec(recipe: str = "countdown-single", settings: str = "stages.0.steps = 9") -> SweepSpec:
    return parse_spec(
        f"""
        name = "two"
        recipe = "countdown-staged"
        seeds = [0, 1]
        set = {{ model.path = "tiny-qwen3", evaluation.every_steps = 7 }}
        [[arms]]
        name = "staged"
        [[arms]]
        name = "single"
        recipe = "{recipe}"
        set = {{ {settings} }}
        """
    )


def test_an_arm_may_begin_with_a_recipe_of_its_own(tmp_path: Path) -> None:
    sweep = resolve(own_spec(), tmp_path, ["verifier.workers=3"])
    staged, single = (sweep.recipe(arm, seed=1) for arm in sweep.arms)
    assert [len(staged.stages), len(single.stages)] == [3, 1]
    assert single.stages[0].steps == 9
    assert (single.name, single.seed) == ("countdown-single", 1)
    # What all arms have, this one has too.
    for recipe in (staged, single):
        assert (recipe.model.path, recipe.evaluation.every_steps, recipe.verifier.workers) == ("tiny-qwen3", 7, 3)
    assert [arm.is_base for arm in sweep.arms] == [True, False]
    prepare(sweep, tmp_path / "out")
    assert read_sweep(tmp_path / "out") == sweep
    assert {path.name for path in (tmp_path / "out").glob("*.toml")} == {"recipe.toml", "recipe-single.toml"}
    assert [recipe_file(arm) for arm in sweep.arms] == ["recipe.toml", "recipe-single.toml"]
    changed = resolve(own_spec(settings="stages.0.steps = 10"), tmp_path, ["verifier.workers=3"])
    with pytest.raises(ConfigError, match=r"arm 'single' is no longer .* stages\.0\.steps was 9 and is 10"):
        prepare(changed, tmp_path / "out")


def test_mistakes_in_a_recipe_of_its_own_name_the_arm(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"arms: single: recipe = 'countdwn': .*countdown"):
        resolve(own_spec("countdwn"), tmp_path)
    with pytest.raises(ConfigError, match=r"arm 'single': .*stages"):
        resolve(own_spec(settings="stages.2.steps = 9"), tmp_path)
    with pytest.raises(ConfigError, match="'staged' and 'single' are the same recipe"):
        resolve(own_spec("countdown-staged", "stages.0.steps = 80"), tmp_path)
