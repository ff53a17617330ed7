"""`groupwise sandbox run`: options that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from groupwise.cli import main


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--isolation", "bogus", "isolation = 'bogus': give one of 'auto', 'namespaces', 'landlock'"),
        ("--isolation", "landlock:0", "isolation = 'landlock:0': give one of"),
        *[("--seconds", value, "--seconds = {}: must be from 0.001") for value in ("nan", "inf", "-1.0", "0.0")],
        *[("--memory-mb", value, "--memory-mb = {}: must be from 1") for value in ("-5", "0", "1048577")],
    ],
)
def test_options_out_of_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, message: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text("print(1)")
    assert main(["sandbox", "run", str(program), f"{option}={value}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("groupwise: " + message.format(value))
    assert said.count("\n") == 1
