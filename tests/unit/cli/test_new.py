"""`groupwise new`: what it writes passes its own test, and trains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from groupwise.cli import main
from groupwise.config import load_recipe

ROOT = Path(__file__).parents[3]


def test_the_scaffold_passes_its_own_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "spell-back", "--folder", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "spell_back.py", "spell_back.toml", "test_spell_back.py",
    ]  # fmt: skip
    assert "spell_back.toml" in capsys.readouterr().out
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_spell_back.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
    # And it is no test that cannot fail: a verifier that takes anything does not pass.
    module = tmp_path / "spell_back.py"
    module.write_text(module.read_text().replace("found.text.strip() == problem.answer", "True"))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "2 failed" in done.stdout


def test_the_scaffold_is_formatted_and_typed(tmp_path: Path) -> None:
    assert main(["new", "spell", "--folder", str(tmp_path)]) == 0
    options = ["--config", str(ROOT / "pyproject.toml"), str(tmp_path)]
    for command in (["format", "--check"], ["check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", *options],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


def test_the_recipe_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "words9-2"]) == 0
    assert load_recipe(Path("words9_2.toml")).task.name == "words9_2:Words92"
    capsys.readouterr()
    assert main(["tasks", "words9_2:Words92"]) == 0
    assert "letters" in capsys.readouterr().out


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_spell.py").write_text("mine")
    assert main(["new", "spell", "--folder", str(tmp_path)]) == 2
    assert "exists; choose another" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["test_spell.py"]
    assert (tmp_path / "test_spell.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["Spell", "9lives", "a--b", "class", "../up", "countdown", "json", "torch", ""])
def test_names_that_will_not_do(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", name, "--folder", str(tmp_path)]) == 2
    assert f"new {name!r}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
