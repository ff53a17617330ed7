"""Every number of a recipe, of a task and of a sweep has a range: what can never be meant is refused."""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from groupwise.config import ConfigError, Recipe, build, parse_recipe
from groupwise.config.build import Config, Within, shown
from groupwise.sweeps.spec import SweepSpec
from groupwise.tasks import TASKS, task_class

WITHOUT_RANGE = {
    "RangeSpec.low": "a value of another key, whose range the recipes of the arms are checked against",
    "RangeSpec.high": "as low",
    "RangeSpec.step": "a difference between values of another key",
    "SweepSpec.jobs": 'a number or "auto", checked by check_jobs',
}
RECIPE = """name = "x"
model = {{ path = "tiny-qwen3" }}
task = {{ name = "countdown" }}
{top}
[[stages]]
algorithm = "grpo"
steps = 2
problems_per_step = 4
rollouts_per_problem = 4
{stage}
"""


def parts(hint: Any) -> Iterator[Any]:
    """Yield a type and the types in it; those under `Annotated` are not yielded apart."""
    yield hint
    if typing.get_origin(hint) is not Annotated:
        for part in typing.get_args(hint):
            yield from parts(part)


def tables() -> list[type[Any]]:
    found: list[type[Any]] = [Recipe, SweepSpec, *map(task_class, TASKS)]
    for cls in found:
        hints = typing.get_type_hints(cls, include_extras=True)
        nested = [part for hint in hints.values() for part in parts(hint) if dataclasses.is_dataclass(part)]
        found += [cls for cls in nested if isinstance(cls, type) and cls not in found]
    return found


NUMBERS = [
    (f"{cls.__name__}.{field.name}", part)
    for cls in tables()
    for field in dataclasses.fields(cls)
    for part in parts(typing.get_type_hints(cls, include_extras=True)[field.name])
    if part in (int, float) or (typing.get_origin(part) is Annotated and part.__origin__ in (int, float))
]


def test_the_numbers_are_found() -> None:
    names = {name for name, _ in NUMBERS}
    assert {"Recipe.seed", "OptimizerConfig.learning_rate", "RewardConfig.part_weights", "Countdown.seed"} <= names


@pytest.mark.parametrize(("name", "hint"), NUMBERS)
def test_every_number_has_a_range(name: str, hint: Any) -> None:
    limits = [limit for limit in getattr(hint, "__metadata__", ()) if isinstance(limit, Within)]
    if name in WITHOUT_RANGE:
        assert not limits, "it has a range: take it off the list"
        return
    (limit,) = limits
    low, high = map(float, limit.interval[1:-1].split(","))
    assert -math.inf < low < high < math.inf
    for value in (math.nan, *({math.inf, -math.inf} - {limit.also}), 10**400, 2**70, 1e20):
        with pytest.raises(ConfigError, match=re.escape(f"key = {shown(value)}: must be ")):
            limit.check("key", value)


@pytest.mark.parametrize(
    ("top", "stage", "message"),
    [
        ("seed = 1180591620717411303424", "", "seed = 1180591620717411303424: must be from 0 to 9,007,199,254,740,992"),
        ("", "optimizer = { learning_rate = inf }", "learning_rate = inf: must be above 0 and at most 1; 1e-6 is"),
        ("", "loss = { clip_low = 5.0 }", "clip_low = 5.0: must be from 0 to 1, or inf (off); 0.2 is usual"),
        ("", 'sampling = { stop_strings = ["a", ""] }', "stop_strings.1 = '': every text contains it"),
        ('evaluation = { stop_strings = [""] }', "", "evaluation: stop_strings.0 = '': every text contains it"),
        ("evaluation = { temperature = -1.0 }", "", "evaluation: temperature = -1.0: must be from 0 to 100"),
        ("", "sampling = { top_p = 0.0 }", "top_p = 0.0: must be above 0 and at most 1; 1 is off"),
        ("", "reward = { part_weights = { box = nan } }", "part_weights.box = nan: must be from"),
        ("", "reward = { min_reward = inf }", "min_reward = inf: must be from -1,000,000 to 1,000,000, or -inf (off)"),
        ("model.tiny = { hidden_size = 0 }", "", "tiny.hidden_size = 0: must be from 1"),
        ('task.reward = { "a:b" = inf }', "", "task: reward.a:b = inf: must be from"),
        ("verifier = { workers = -1 }", "", 'workers = -1: must be from 0 to 256; or "auto"'),
    ],
)
def test_what_can_never_be_meant_is_refused(top: str, stage: str, message: str) -> None:
    inline = {"model.tiny": "model", "task.reward": "task"}.get(top.partition(" =")[0], "")
    text = RECIPE.format(top="" if inline else top, stage=stage)
    settings = [top.replace(" = ", "=", 1)] if inline else []
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_recipe(text, settings)


@pytest.mark.parametrize("steps", ["10" + 19 * "0", "10" + 300 * "0", "-1", "1e20"])
def test_numbers_of_steps(steps: str) -> None:
    with pytest.raises(ConfigError, match=r"stages\.0.*steps = .{1,100}: (must be from 1 to|expected a whole number)"):
        parse_recipe(RECIPE.format(top="", stage="").replace("steps = 2", f"steps = {steps}"))


@dataclasses.dataclass(frozen=True)
class Table(Config):
    one: Annotated[int, Within("[1, 3]", also=0)] | None = None
    many: tuple[Annotated[float, Within("(0, 1)")], ...] = ()


def test_limits_inside_of_other_types() -> None:
    for table in ({"one": 0}, {"one": 3, "many": [0.5, 0.9]}):
        assert build(Table, table, "")
    for table, message in (({"one": 4}, "one = 4: must be from 1 to 3, or 0"), ({"many": [0.5, 1]}, "many.1 = 1.0")):
        with pytest.raises(ConfigError, match=message):
            build(Table, table, "")


def test_long_values_are_cut() -> None:
    assert shown("x" * 1000) == f"'{78 * 'x'}…"
    assert shown(10**5000) == shown(-(10**5000)) == "an integer of about 5,000 digits"
