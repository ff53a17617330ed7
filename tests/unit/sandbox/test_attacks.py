"""The corpus of attacks, in both isolations, as root and as a plain user."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from groupwise.sandbox.client import ISOLATIONS
from tests.unit.sandbox.as_plain_user import CANNOT
from tests.unit.sandbox.attacks import ATTACKS, Attack
from tests.unit.sandbox.conftest import is_refusal, skip_unless_offered
from tests.unit.sandbox.world import ROOT, World


@pytest.fixture(scope="module", params=[*ISOLATIONS, "landlock:1"])
def isolation(request: pytest.FixtureRequest) -> str:
    skip_unless_offered(request.param)
    return str(request.param)


@pytest.fixture(scope="module")
def world(isolation: str) -> Iterator[World]:
    with World(isolation) as made:
        yield made


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name.replace(" ", "-"))
def test_attack(world: World, attack: Attack) -> None:
    assert world.check(attack) == []


def test_attacks_as_a_plain_user(isolation: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("already a plain user: the tests above were it")
    command = [sys.executable, "-m", "tests.unit.sandbox.as_plain_user", "tests.unit.sandbox.world", isolation]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    if result.returncode == CANNOT or is_refusal(result.stderr):
        pytest.skip(result.stdout + result.stderr[-1000:])
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n")[0] == f"user 65534, {isolation}: {len(ATTACKS)} attacks, 0 wrong", result.stdout


def test_names_are_unique() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
