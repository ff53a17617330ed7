"""Input that cannot be used ends in one clear error: exit status 2, what is wrong with what, and no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from groupwise.base.outside import MAX_DIGITS
from groupwise.cli import make_parser
from groupwise.cli.arguments import argument
from tests.unit.cli.bad_input import BAD_INPUT, BadInput, tried
from tests.unit.cli.test_help import parsers


@pytest.mark.timeout(60)
@pytest.mark.parametrize("bad", [pytest.param(bad, id=bad.name) for bad in BAD_INPUT])
def test_bad_input_is_refused(bad: BadInput, tmp_path: Path) -> None:
    outcome = tried(bad, tmp_path)
    printed = " ".join(outcome.printed.split())
    assert outcome.status == 2, printed
    assert bad.says in printed
    assert len(printed) < 2000


def test_every_number_of_a_command_has_a_range() -> None:
    commands = [run for parser in parsers(make_parser()) if (run := parser.get_default("run")) is not None]
    limits = [one.limits for run in commands for one in run.arguments if one.settings.get("type") in (int, float)]
    assert len(limits) > 40
    for limit in limits:
        for value in (float("nan"), float("inf"), -float("inf"), 10**MAX_DIGITS):
            with pytest.raises(ValueError, match="must be"):
                limit.check("--number", value)


def test_a_number_without_a_range_is_no_argument() -> None:
    with pytest.raises(TypeError, match="--number: a number needs an interval"):
        argument("--number", "some number", default=1)
