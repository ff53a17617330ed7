"""Calibration with made-up probes: what they say, where it is kept, and who uses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from groupwise.config import ConfigError
from groupwise.planner.make_plan import make_plan
from groupwise.planner.measure import Probed, calibration_path, known_speed, measure, speed_of
from groupwise.planner.timing import Speed
from tests.unit.planner.works import H200, QWEN, small_recipe

MEASURED = Probed(shape=QWEN, sample_s=0.52, update_s=0.42, sequence_tokens=449.0)
"""About what an H200 takes: 64 sequences of 256 tokens, and 32 of 577 in the mean, layers computed again."""


def test_what_was_measured_here_is_close_to_the_plan() -> None:
    speed = speed_of(MEASURED, H200)
    assert (speed.decode, speed.update) == pytest.approx((1.0, 1.0), abs=0.25)


def test_a_machine_twice_as_slow_has_a_factor_of_two() -> None:
    slow = Probed(QWEN, 2 * MEASURED.sample_s, 2 * MEASURED.update_s, MEASURED.sequence_tokens)
    one, two = speed_of(MEASURED, H200), speed_of(slow, H200)
    assert (two.decode, two.update) == pytest.approx((2 * one.decode, 2 * one.update))


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert calibration_path() == tmp_path / "groupwise" / "plan.json"
    return calibration_path()


def test_it_is_remembered_for_that_gpu_alone(path: Path) -> None:
    assert known_speed("GPU A") is None
    first = measure(H200, "GPU A", probe=lambda gpu: MEASURED)
    measure(H200, "GPU B", probe=lambda gpu: Probed(QWEN, 9.0, 9.0, 449.0))
    assert known_speed("GPU A") == first
    assert known_speed("GPU C") is None
    assert set(json.loads(path.read_text())) == {"GPU A", "GPU B"}


def test_a_damaged_file_is_named(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"plan\.json: cannot be read .* run again with --measure"):
        known_speed("GPU A")


def test_a_calibrated_plan_needs_no_note() -> None:
    from groupwise.planner.gpus import GPUS

    plain = make_plan(small_recipe(), QWEN, GPUS["b200"], prompt_tokens=100)
    calibrated = make_plan(small_recipe(), QWEN, GPUS["b200"], prompt_tokens=100, speed=Speed(1.5, 1.5))
    assert any("--measure" in note for note in plain.notes)
    assert not any("--measure" in note for note in calibrated.notes)
    assert calibrated.evaluation_s == pytest.approx(1.5 * plain.evaluation_s)
