"""The sweep file: what it refuses, and that what ships can be run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from groupwise.config import ConfigError
from groupwise.sweeps.arms import resolve
from groupwise.sweeps.spec import SWEEPS, find_sweep, flatten, load_spec, parse_spec
from groupwise.sweeps.sweep_records import Arm

TOP = 'name = "small"\nrecipe = "demo"\n'
KNOB = '[[knobs]]\nname = "kl"\nkey = "stages.grpo.kl.coefficient"\nvalues = [0.0, 0.1]\n'
SEARCH = '[search]\ntrials = 3\n[[search.ranges]]\nname = "rate"\nkey = "stages.grpo.optimizer.learning_rate"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('recipe = "demo"\n' + KNOB, "name: missing"),
        (TOP, "nothing to vary"),
        (TOP + "sedes = [1]\n" + KNOB, "sedes: unknown key; did you mean 'seeds'"),
        (TOP + KNOB.replace("values", "valeus"), "knobs.0.valeus: unknown key; did you mean 'values'"),
        (TOP + KNOB + "[search]\ntrials = 1\nranges = []\n", "search: ranges = "),
        (TOP + KNOB + '[[arms]]\nname = "one"\n', "knobs and arms: give only one of"),
        (TOP + 'mode = "gird"\n' + KNOB, "mode = 'gird': did you mean 'grid'"),
        (TOP + 'mode = "grid"\n[[arms]]\nname = "one"\n', "only for \\[\\[knobs\\]\\]"),
        (TOP + "seeds = []\n" + KNOB, "seeds = \\[\\]: give at least one"),
        (TOP + "seeds = [1, 1]\n" + KNOB, "one is given twice"),
        (TOP + "seeds = [-1]\n" + KNOB, "seeds.0 = -1: must be from 0 to"),
        (TOP + "jobs = 0\n" + KNOB, 'jobs = 0: expected a number from 1 to 10,000, or "auto"'),
        (TOP + 'jobs = "many"\n' + KNOB, "jobs = 'many'"),
        (TOP.replace("small", "../out") + KNOB, "name = '../out': use 1 to 48 letters"),
        (TOP + KNOB.replace('"kl"', '"a b"'), "knobs.0: name = 'a b'"),
        (TOP + KNOB + KNOB.replace('"kl"', '"KL"'), "knobs: two are called 'kl'"),
        (TOP + KNOB + 'keys = ["a"]\n', "give key .* or keys"),
        (TOP + KNOB.replace("stages.grpo.kl.coefficient", "seed"), "list the seeds in `seeds`"),
        (TOP + KNOB.replace("[0.0, 0.1]", "[]"), "values = \\[\\]: give at least one"),
        (TOP + KNOB + 'labels = ["x"]\n', "1 labels for 2 values"),
        (TOP + '[[arms]]\nname = "x"\n[[arms]]\nname = "X"\n', "arms: two are called 'x'"),
        (TOP + SEARCH, "rate: give low and high, or choices"),
        (TOP + SEARCH + "low = 2\nhigh = 1\n", "low = 2 must be below high = 1"),
        (TOP + SEARCH + "low = 0\nhigh = 1\nlog = true\n", "log = true needs it above 0"),
        (TOP + SEARCH + "low = 1\nhigh = 9\nlog = true\nstep = 2\n", "step and log cannot be combined"),
        (TOP + SEARCH + "choices = [1]\nlow = 2\n", "drop low, or choices"),
        (TOP + SEARCH + "choices = [[1]]\n", "must be a string, number or boolean"),
        (TOP + SEARCH.replace("trials = 3", "trials = 0") + "low = 1\nhigh = 2\n", "trials = 0"),
        ("name = ", "is not valid TOML"),
    ],
)
def test_what_the_file_alone_shows_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_spec(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TOP + KNOB.replace("coefficient", "coefficent"), "arm 'kl-0': stages.1.kl.coefficent: unknown key; did you"),
        (TOP + KNOB.replace("0.1]", "-0.1]"), "arm 'kl-minus-0.1': .*coefficient = -0.1: must be from 0 to"),
        (TOP + KNOB.replace("0.1]", "nan]"), "knobs: kl: values = nan"),
        (TOP.replace('"demo"', '"dmeo"') + KNOB, "no recipe named 'dmeo'; did you mean 'demo'"),
        (TOP.replace('"demo"', '"gone.toml"') + KNOB, "recipe = 'gone.toml': no recipe at gone.toml; give a path"),
        (TOP + "set = { seed = 3 }\n" + KNOB, "list the seeds in `seeds`"),
        (TOP + 'set = { "a.b" = 1, a = { b = 2 } }\n' + KNOB, "a.b is set twice"),
        (TOP + KNOB + "set = { stages = [{ steps = 1 }] }\n", "not a list of tables"),
    ],
)
def test_recipes_that_cannot_run_are_refused_before_anything_runs(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(parse_spec(text), tmp_path)


def test_a_table_is_a_path_and_an_empty_one_a_value() -> None:
    table = {"stages": {"0": {"steps": 3}}, "model.lora": {}, "task": {"options": {"style": "terse"}}}
    assert flatten(table) == {"stages.0.steps": 3, "model.lora": {}, "task.options.style": "terse"}


def test_a_sweep_is_found_by_name_or_as_a_file(tmp_path: Path) -> None:
    assert find_sweep("format-copy-study") == SWEEPS / "format-copy-study.toml"
    assert find_sweep("my/sweep.toml") == Path("my/sweep.toml")
    with pytest.raises(ConfigError, match="did you mean 'format-copy-study'"):
        find_sweep("format-copy-studdy")
    with pytest.raises(ConfigError, match=r"no sweep at .*format-copy-study"):
        load_spec(tmp_path / "gone.toml")
    with pytest.raises(ConfigError, match="cannot read the sweep"):
        load_spec(tmp_path)


def test_a_recipe_beside_the_sweep_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sweeps").mkdir()
    demo = (SWEEPS.parent / "demo.toml").read_text()
    (tmp_path / "sweeps" / "beside.toml").write_text(demo.replace('name = "demo"', 'name = "beside"'))
    (tmp_path / "here.toml").write_text(demo.replace('name = "demo"', 'name = "here"'))
    monkeypatch.chdir(tmp_path)
    for name in ("beside", "here"):
        spec = parse_spec(TOP.replace('"demo"', f'"{name}.toml"') + KNOB)
        assert f'name = "{name}"' in resolve(spec, tmp_path / "sweeps").recipe_text


@pytest.mark.parametrize("path", sorted(SWEEPS.glob("*.toml")), ids=lambda path: path.stem)
def test_sweeps_that_ship_are_valid(path: Path) -> None:
    spec = load_spec(path)
    assert spec.name == path.stem
    assert spec.description
    sweep = resolve(spec, path.parent)
    assert all(sweep.recipe(arm, seed) for arm in sweep.arms for seed in sweep.seeds)


def test_the_study_has_the_arms_that_it_is_about() -> None:
    sweep = resolve(load_spec(SWEEPS / "format-copy-study.toml"), SWEEPS)
    sizes = {knob.name: len(knob.arms) for knob in sweep.knobs}
    assert sizes == {"kl": 6, "epochs": 5, "clip": 5, "accumulation": 4, "microbatch": 4}
    by_name = {arm.name: arm for arm in sweep.arms}
    assert len(by_name) == 21
    assert [knob.name for knob in sweep.knobs if any(arm.is_base for arm in knob.arms)] == [
        "kl",
        "epochs",
        "accumulation",
        "microbatch",
    ]
    # Where nothing is off-policy, clipping cannot matter.
    assert all(sweep.recipe(arm).stages[0].updates_per_step == 8 for arm in sweep.knobs[2].arms)  # type: ignore[union-attr]
    steps = {sweep.recipe(arm).total_steps for arm in sweep.arms}
    assert steps == {40}


@pytest.mark.parametrize("name", ["grpo-against-gr-reinforce", "math-grpo-against-gr-reinforce"])
def test_grpo_and_gr_reinforce_differ_in_the_loss_alone(name: str) -> None:
    sweep = resolve(load_spec(SWEEPS / f"{name}.toml"), SWEEPS)
    grpo, reinforce = (sweep.recipe(arm).stages[0] for arm in sweep.arms)
    assert (grpo.algorithm, reinforce.algorithm) == ("grpo", "gr_reinforce")
    # By its name a stage draws problems and rollouts.
    for key in ("name", "problems_per_step", "rollouts_per_problem", "steps", "optimizer", "kl", "sampling", "reward"):
        assert getattr(grpo, key) == getattr(reinforce, key)
    assert grpo.loss.surrogate == "clipped"  # type: ignore[union-attr]
    assert reinforce.loss.surrogate == "policy_gradient"  # type: ignore[union-attr]


def test_the_sweeps_of_the_documentation_are_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "sweep.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^~~~toml\n(.*?)^~~~$", page, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    for block in blocks:
        spec = parse_spec(block)
        sweep = resolve(spec, tmp_path)
        assert sweep.arms or spec.search
        for one in spec.search.ranges if spec.search else ():
            for value in one.choices or (one.low, one.high):
                sweep.recipe(Arm("x", "", "", "", dict.fromkeys(one.all_keys, value)))
