"""Any recipe is built or refused, in bounded time: random bytes, texts like TOML, and shipped recipes with damage.

`outcome_of_recipe` is one deterministic trial.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.config import (
    RECIPES,
    ConfigError,
    Recipe,
    RlStage,
    SftStage,
    dump_toml,
    fingerprint,
    load_recipe,
    parse_recipe,
    to_table,
)
from groupwise.config.build import key_paths
from groupwise.config.synonyms import SYNONYMS
from groupwise.tasks import make_task
from tests.fuzz import examples

MAX_S = 5.0
MAX_MESSAGE_CHARS = 2000
SHIPPED = [path.read_text(encoding="utf-8") for path in sorted(RECIPES.glob("*.toml"))]
KEYS = sorted(
    {path.rpartition(".")[2] for cls in (Recipe, RlStage, SftStage) for path in key_paths(cls, "")} | set(SYNONYMS)
)
PLAIN_VALUES = ["0", "1", "2", "8", "0.5", "1e-6", "true", "false", '"none"', '"cpu"', '"a"', "[]", "{}", '["a"]']
ODD_VALUES = [
    *("-1", "nan", "inf", "-inf", "1e20", "1e400", "-0.0", str(2**70), str(10**20), "9" * 400, "9" * 5000, "0x1F"),
    *(
        '""',
        '"\\u0000"',
        '"\\ud800"',
        '"\\n"',
        "'''",
        '"""',
        '"' + 9000 * "x" + '"',
        "1979-05-27",
        "07:32:00",
        "=",
        "#",
    ),
    *(5000 * "[", 200 * "[" + 200 * "]", 200 * "{a=" + "1" + 200 * "}", "[" + 5000 * "1," + "]", "[[], {}, 1]", ""),
    *('"module:name"', '"nowhere:at_all"', '"../x"', '"~"', "{ a = { b = [nan] } }", '[""]', "[1, 'a']", "1_000"),
]


def random_recipe(seed: int) -> bytes:
    """Return recipe number `seed`: what a file may contain, from nearly right to noise."""
    rng = random.Random(f"recipe/{seed}")
    if rng.random() < 0.05:
        return rng.randbytes(rng.randrange(2000))
    text = _made_up(rng) if rng.random() < 0.2 else rng.choice(SHIPPED)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        text = rng.choice(DAMAGES)(rng, text)
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        place = rng.randrange(len(data) + 1)
        data = data[:place] + rng.randbytes(rng.randrange(4)) + data[place + rng.randrange(3) :]
    return rng.choice((*[b""] * 17, b"\xef\xbb\xbf", b"\xff\xfe", b"\0")) + data


def outcome_of_recipe(seed: int) -> str:
    """Return what became of recipe number `seed`: "built", or the message of its refusal. Raise for all else."""
    return outcome_of(random_recipe(seed))


def outcome_of(content: bytes) -> str:
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.toml"
        path.write_bytes(content)
        outcome = _outcome(path)
    taken = time.perf_counter() - begin
    assert taken < MAX_S, f"{taken:.1f} s"
    return outcome


def _outcome(path: Path) -> str:
    try:
        recipe = load_recipe(path)
        make_task(recipe.task.name, recipe.task.options)
    except ConfigError as error:
        return _clear(error).replace(str(path), path.name)
    text = dump_toml(to_table(recipe))
    again = parse_recipe(text)
    assert dump_toml(to_table(again)) == text
    assert fingerprint(again) == fingerprint(recipe)
    return "built"


def _clear(error: ConfigError) -> str:
    message = str(error)
    assert 0 < len(message) < MAX_MESSAGE_CHARS
    return message


def _made_up(rng: random.Random) -> str:
    """A text of tables, keys and values of recipes in any order."""
    headings = ["[model]", "[task]", "[[stages]]", "[stages.optimizer]", "[evaluation]", "[a.b]", "[[a]]", "[", "[[]]"]
    lines = [
        rng.choice(headings) if rng.random() < 0.2 else f"{rng.choice(KEYS)} = {rng.choice(PLAIN_VALUES + ODD_VALUES)}"
        for _ in range(rng.randrange(20))
    ]
    return "\n".join(lines)


def _other_value(rng: random.Random, text: str) -> str:
    """Another value for one of the keys."""
    lines = text.splitlines()
    places = [number for number, line in enumerate(lines) if "=" in line]
    if places:
        place = rng.choice(places)
        key = lines[place].partition("=")[0]
        lines[place] = f"{key}= {rng.choice(PLAIN_VALUES if rng.random() < 0.6 else ODD_VALUES)}"
    return "\n".join(lines)


def _other_key(rng: random.Random, text: str) -> str:
    """Another name for one of the keys."""
    lines = text.splitlines()
    places = [number for number, line in enumerate(lines) if "=" in line]
    if places:
        place = rng.choice(places)
        value = lines[place].partition("=")[2]
        name = rng.choice((rng.choice(KEYS), "a.b.c", '""', "'é'", 300 * "a.", ".", "a b"))
        lines[place] = f"{name} ={value}"
    return "\n".join(lines)


def _other_line(rng: random.Random, text: str) -> str:
    """A line more, twice, or less."""
    lines = text.splitlines() or [""]
    place = rng.randrange(len(lines))
    more = f"{rng.choice(KEYS)} = {rng.choice(PLAIN_VALUES + ODD_VALUES)}"
    lines[place : place + rng.randrange(3)] = rng.choice(([more], [lines[place]] * 2, []))
    return "\n".join(lines)


def _other_letter(rng: random.Random, text: str) -> str:
    place = rng.randrange(len(text) + 1)
    return text[:place] + rng.choice("[]{}=\"'#.\n\\\0é\u2028") + text[place + rng.randrange(2) :]


def _cut(rng: random.Random, text: str) -> str:
    return text[: rng.randrange(len(text) + 1)]


DAMAGES: list[Callable[[random.Random, str], str]] = [
    *([_other_value] * 4),
    *(_other_key, _other_line, _other_letter, _cut),
]


@examples(600)
@given(seed=st.integers(0, 2**32))
def test_damaged_recipes_are_built_or_refused(seed: int) -> None:
    outcome_of_recipe(seed)


@examples(100)
@given(content=st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_file_is_built_or_refused(content: bytes) -> None:
    assert outcome_of(content) != "built"


@examples(200)
@given(
    key=st.sampled_from(KEYS) | st.text(max_size=20),
    value=st.sampled_from(PLAIN_VALUES + ODD_VALUES) | st.text(max_size=30),
)
def test_any_setting_is_used_or_refused(key: str, value: str) -> None:
    for place in ("", "stages.0.", "stages.0.optimizer.", "task.options."):
        try:
            recipe = parse_recipe(SHIPPED[0], [f"{place}{key}={value}"])
        except ConfigError as error:
            _clear(error)
        else:
            assert parse_recipe(dump_toml(to_table(recipe))).name == recipe.name


def test_trials_can_be_repeated_and_differ() -> None:
    outcomes = [outcome_of_recipe(seed) for seed in range(60)]
    assert outcomes == [outcome_of_recipe(seed) for seed in range(60)]
    assert "built" in outcomes
    assert len(set(outcomes)) > 30


@pytest.mark.parametrize("text", SHIPPED)
def test_what_is_not_damaged_is_built(text: str) -> None:
    assert outcome_of(text.encode()) == "built"
