from __future__ import annotations

import copy
import dataclasses
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.config import (
    ALGORITHMS,
    SUMMARIES,
    ConfigError,
    Recipe,
    RlStage,
    SftStage,
    dump_toml,
    find_recipe,
    fingerprint,
    load_recipe,
    make_recipe,
    parse_recipe,
    to_table,
)

TEXT = """
name = "demo"
seed = 3

[model]
path = "tiny-qwen3"
tiny = { hidden_size = 32 }

[model.lora]
rank = 4

[task]
name = "countdown"
options = { num_numbers = 3, note = "a \\"quoted\\" \\\\ note\\n with é and \\u007f" }

[[stages]]
algorithm = "sft"
steps = 2
demonstrations_per_step = 4

[[stages]]
name = "learn"
algorithm = "dapo"
steps = 5
problems_per_step = 4
rollouts_per_problem = 8
[stages.optimizer]
learning_rate = 1e-5
[stages.reward]
part_weights = { format = 0.5, "odd key" = 2 }

[evaluation]
every_steps = 5
"""


def parsed(*overrides: str) -> Recipe:
    return parse_recipe(TEXT, overrides)


def rl(recipe: Recipe, index: int = 1) -> RlStage:
    stage = recipe.stages[index]
    assert isinstance(stage, RlStage)
    return stage


def minimal(algorithm: str = "grpo", **keys: Any) -> dict[str, Any]:
    stage = {"algorithm": algorithm, "steps": 1, "problems_per_step": 2, "rollouts_per_problem": 4, **keys}
    return {"name": "x", "model": {"path": "tiny-qwen3"}, "task": {"name": "countdown"}, "stages": [stage]}


def test_set_by_index_and_by_name() -> None:
    assert parsed("stages.1.steps=7").stages[1].steps == 7
    assert parsed("stages.learn.steps=7").stages[1].steps == 7
    assert parsed("stages.0.steps=7").stages[0].steps == 7
    assert rl(parsed("stages.learn.optimizer.learning_rate=3e-4")).optimizer.learning_rate == 3e-4


def test_set_makes_tables_that_were_not_there() -> None:
    assert rl(parsed("stages.learn.kl.coefficient=0.1")).kl.coefficient == 0.1
    assert parsed("checkpoints.keep_last=5").checkpoints.keep_last == 5


def test_set_values_are_toml_or_else_text() -> None:
    assert parsed("task.name=package.module:Task").task.name == "package.module:Task"
    assert parsed('task.name="quoted"').task.name == "quoted"
    assert parsed("model.gradient_checkpointing=true").model.gradient_checkpointing is True
    assert rl(parsed("stages.1.loss.clip_high=inf")).loss.clip_high == float("inf")
    assert rl(parsed('stages.1.sampling.stop_strings=["a=b", "c"]')).sampling.stop_strings == ("a=b", "c")
    assert parsed(" seed =5").seed == 5
    assert parsed("description=a = b").description == "a = b"


def test_the_last_set_wins() -> None:
    assert parsed("seed=1", "seed=2").seed == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "key=value"),
        ("=3", "key=value"),
        ("stages.7.steps=1", r"stages\.7: no such stage; known: 0, 1, sft, learn"),
        ("stages.lern.steps=1", r"no such stage; known: 0, 1, sft, learn"),
        ("stages.0=5", "name a key inside the stage"),
        ("seed.x=1", "not a table"),
        ("sede=1", "sede: unknown key; did you mean 'seed'"),
        ("stages.1.loss.clip=1", r"stages\.1\.loss\.clip: unknown key"),
        ("seed=", "expected a whole number"),
        ("seed=many", "seed = 'many': expected a whole number, got str"),
        ("seed=1\nname='other'", "more than one key; give each a --set of its own"),
        ("model..path=x", "key=value"),
        (f"task.options{101 * '.a'}=1", "key=value"),
        ("seed=" + 5000 * "9", r"seed = '9+…: expected a whole number"),
        ("description=\ud800", "not UTF-8"),
    ],
)
def test_a_set_that_cannot_be_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parsed(override)


@pytest.mark.parametrize(
    "override",
    ["stages.0.steps=1", "stages.0.loss.clip_low=1", "stages.².steps=1"],
)
def test_a_set_into_a_stage_that_is_no_table_is_refused(override: str) -> None:
    with pytest.raises(ConfigError):
        parse_recipe('name = "x"\nstages = [1]', [override])


def test_set_does_not_touch_a_string_stage_name_that_is_a_number() -> None:
    """An index wins over a name."""
    text = TEXT.replace('name = "learn"', 'name = "0"')
    assert parse_recipe(text, ["stages.0.steps=9"]).stages[0].steps == 9


def test_a_preset_wins_over_defaults_and_loses_to_the_file() -> None:
    default = RlStage(algorithm="x", steps=1, problems_per_step=1, rollouts_per_problem=2)
    stage = rl(make_recipe(minimal("dapo")), 0)
    assert (stage.loss.clip_high, default.loss.clip_high) == (0.28, 0.2)
    assert stage.reward.overlong_filter
    assert stage.refill_rounds == 4
    mine = rl(make_recipe(minimal("dapo", loss={"clip_high": 0.5}, refill_rounds=1)), 0)
    assert (mine.loss.clip_high, mine.refill_rounds) == (0.5, 1)
    # The rest of the table that was written in part still comes from the preset.
    assert mine.loss.weights == "token_mean"
    assert mine.loss.clip_low == 0.2


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_preset_is_what_its_table_says(algorithm: str) -> None:
    stage = rl(make_recipe(minimal(algorithm)), 0)
    table = to_table(stage)
    for key, value in ALGORITHMS[algorithm].items():
        if isinstance(value, dict):
            assert {name: table[key][name] for name in value} == value
        else:
            assert table[key] == value


def test_using_a_preset_does_not_change_it() -> None:
    before = copy.deepcopy(ALGORITHMS)
    make_recipe(minimal("grpo", loss={"clip_low": 0.7}, kl={"coefficient": 1.0}))
    assert before == ALGORITHMS


def test_every_algorithm_has_a_summary() -> None:
    assert set(SUMMARIES) == {*ALGORITHMS, "sft"}


def stage_names(*stages: tuple[str, str]) -> list[str]:
    table = minimal()
    table["stages"] = [table["stages"][0] | {"algorithm": algorithm, "name": name} for algorithm, name in stages]
    return [stage.name for stage in make_recipe(table).stages]


def test_stages_get_their_own_names() -> None:
    assert stage_names(("grpo", ""), ("dapo", "")) == ["grpo", "dapo"]
    assert stage_names(("grpo", ""), ("dapo", ""), ("grpo", "")) == ["grpo-1", "dapo", "grpo-2"]
    assert stage_names(("grpo", "a"), ("dapo", "a")) == ["a-1", "a-2"]
    assert stage_names(("grpo", "first"), ("grpo", "")) == ["first", "grpo"]


def test_stage_names_that_clash_with_numbered_ones_are_refused() -> None:
    """Seeds hash the stage's name: two stages of one name would draw the same noise."""
    with pytest.raises(ConfigError, match="two are called 'grpo-1'"):
        stage_names(("grpo", ""), ("grpo", ""), ("dapo", "grpo-1"))


def assert_round_trips(recipe: Recipe) -> None:
    text = dump_toml(to_table(recipe))
    again = parse_recipe(text)
    assert again == recipe
    assert fingerprint(again) == fingerprint(recipe)
    assert dump_toml(to_table(again)) == text


def test_the_resolved_recipe_reads_back_to_the_same() -> None:
    assert_round_trips(parsed())


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_algorithm_reads_back_to_the_same(algorithm: str) -> None:
    """Infinities (clip_low of CISPO, dual_clip) included."""
    assert_round_trips(make_recipe(minimal(algorithm)))


def test_the_resolved_recipe_has_every_default() -> None:
    table = tomllib.loads(dump_toml(to_table(make_recipe(minimal()))))
    assert table["stages"][0]["loss"]["clip_low"] == 0.2
    assert table["stages"][0]["name"] == "grpo"
    assert table["checkpoints"]["keep_last"] == 2


plain_text = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]))
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | plain_text
tables = st.recursive(
    st.dictionaries(plain_text, scalars | st.lists(scalars, max_size=3), max_size=4),
    lambda inner: st.dictionaries(plain_text, inner | st.lists(inner, min_size=1, max_size=2), max_size=3),
    max_leaves=8,
)


@given(options=tables, description=plain_text)
def test_any_options_read_back_to_the_same(options: dict[str, Any], description: str) -> None:
    table = minimal() | {"task": {"name": "countdown", "options": options}, "description": description}
    assert_round_trips(make_recipe(table))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"description": "dice 🎲"}, id="beyond the 16-bit plane"),
        pytest.param(
            {"task": {"name": "x", "options": {"mixed": [1, {"a": 1}]}}}, id="a table after a number in a list"
        ),
        pytest.param({"task": {"name": "x", "options": {"deep": [[{"a": 1}]]}}}, id="a table in a list in a list"),
    ],
)
def test_these_too(change: dict[str, Any]) -> None:
    assert_round_trips(make_recipe(minimal() | change))


def test_a_date_among_the_options() -> None:
    assert fingerprint(parsed("task.options.since=2024-01-01"))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any, str]]:
    """(path, the dataclass that holds the field, the field's name) of every key of a recipe."""
    for spec in dataclasses.fields(value):
        child = getattr(value, spec.name)
        here = (*path, spec.name)
        if dataclasses.is_dataclass(child):
            yield from leaves(child, here)
        elif isinstance(child, tuple) and child and dataclasses.is_dataclass(child[0]):
            for index, entry in enumerate(child):
                yield from leaves(entry, (*here, index))
        else:
            yield here, value, spec.name


PATHS = [path for path, _, _ in leaves(parsed())]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
def test_every_key_that_can_move_a_number_is_in_the_fingerprint(path: tuple[Any, ...]) -> None:
    """Exhaustive: each key of the recipe is given another value behind the back of the validation."""
    recipe = copy.deepcopy(parsed())
    holder, name = next((holder, name) for here, holder, name in leaves(recipe) if here == path)
    object.__setattr__(holder, name, "another value")
    is_same = fingerprint(recipe) == fingerprint(parsed())
    where_vllm_is = {("engine", key) for key in ("memory_share", "url", "weights_folder", "timeout_s")}
    is_exempt = path[0] in ("name", "description", "logging") or path in {("verifier", "workers"), *where_vllm_is}
    assert is_same == is_exempt


def test_the_fingerprint_does_not_depend_on_how_the_recipe_was_written() -> None:
    spelled_out = make_recipe(minimal("grpo", kl={"coefficient": 0.04}, name="grpo"))
    assert fingerprint(spelled_out) == fingerprint(make_recipe(minimal("grpo")))
    backwards = dict(reversed(minimal("grpo").items()))
    assert fingerprint(make_recipe(backwards)) == fingerprint(make_recipe(minimal("grpo")))


def test_the_fingerprint_of_today_is_that_of_tomorrow() -> None:
    assert fingerprint(parsed()) == fingerprint(parsed())
    assert len(fingerprint(parsed())) == 16


def test_a_recipe_is_frozen() -> None:
    recipe = parsed()
    for holder, name in [
        (recipe, "seed"),
        (recipe.model, "path"),
        (rl(recipe).loss, "clip_low"),
        (rl(recipe), "steps"),
    ]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(holder, name, 1)


def test_making_a_recipe_leaves_the_table_alone() -> None:
    table = minimal()
    before = copy.deepcopy(table)
    make_recipe(table)
    assert table == before


def test_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "demo.toml"
    path.write_text(TEXT, encoding="utf-8")
    assert load_recipe(path) == parsed()
    assert load_recipe(path, ["seed=9"]).seed == 9
    assert isinstance(load_recipe(path).stages[0], SftStage)
    assert load_recipe(path).total_steps == 7


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no recipe at .*none\.toml"):
        load_recipe(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot read"):
        load_recipe(tmp_path)
    broken = tmp_path / "broken.toml"
    broken.write_text("name = \n")
    with pytest.raises(ConfigError, match=r"broken\.toml is not valid TOML"):
        load_recipe(broken)
    for content, message in (
        (b"\xff\xfe\x00", "not UTF-8 .byte 0.; save it as UTF-8"),
        (b" \n", "is empty"),
        (b"a = 1\na = 2\n", "a key is given twice .at line 2"),
        (b"seed = " + 5000 * b"1", "an integer of more than 308 digits"),
        (b"#" * (1 << 21), "at most 1,048,576 are read"),
    ):
        broken.write_bytes(content)
        with pytest.raises(ConfigError, match=message):
            load_recipe(broken)


def test_a_folder_does_not_hide_a_recipe_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    assert load_recipe(find_recipe("demo")).name == "demo"
    (tmp_path / "gsm8k").write_text("name = 1")
    assert find_recipe("gsm8k") == Path("gsm8k"), "a file of one's own does"
