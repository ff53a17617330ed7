"""What a recipe names is found, announced and refused before it runs."""

import functools
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from groupwise.config.build import ConfigError
from groupwise.config.named_code import is_function, load_named

CODE = """
import functools, os, shutil
from pathlib import Path
from shutil import rmtree
(Path(__file__).parent / "ran").touch()
def reward(completion, row):
    return 1.0
halved = functools.partial(reward, row={})
remove = functools.partial(shutil.rmtree, ignore_errors=True)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current folder, which is not on the path."""
    name = f"named_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return name


def test_an_import_is_announced_once(module: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert load_named(f"{module}:reward", "task.reward")("", {}) == 1.0
        assert load_named(f"{module}:halved", "task.reward").func("", {}) == 1.0
    assert [record.message for record in caplog.records] == [
        f"task.reward: importing {module} from {Path.cwd() / module}.py"
    ]


@pytest.mark.parametrize("target", ["shutil:rmtree", "os.path:exists", "builtins:len", "{}:rmtree", "{}:remove"])
def test_functions_of_the_standard_library_are_refused(module: str, target: str) -> None:
    with pytest.raises(ConfigError, match=r"sink: '(shutil|os|builtins)' belongs to Python's standard library"):
        load_named(target.format(module), "sink")


@pytest.mark.parametrize("is_on_path", [False, True])
@pytest.mark.parametrize("subfolder", [".", "rewards", "data/deep"])
def test_nothing_is_imported_from_a_run_directory(
    module: str, subfolder: str, is_on_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("recipe.toml", "run.lock"):
        (tmp_path / name).touch()
    folder = tmp_path / subfolder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{module}.py").write_text(CODE)
    monkeypatch.chdir(folder)
    if is_on_path:
        monkeypatch.setattr(sys, "path", ["", *sys.path])
    path = list(sys.path)
    with pytest.raises(
        ConfigError, match=r"lies in the run directory .* move it out of the run directory, or set PYTH"
    ):
        load_named(f"{module}:reward", "task.reward")
    assert not (folder / "ran").exists()
    assert sys.path == path
    monkeypatch.setenv("PYTHONPATH", str(folder))
    assert load_named(f"{module}:reward", "task.reward")


def test_a_package_is_found_by_its_folder(module: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    package = tmp_path / f"{module}_package"
    (package / "inner").mkdir(parents=True)
    (package / "inner" / "__init__.py").write_text("def reward(completion, row):\n    return 2.0\n")
    assert load_named(f"{package.name}.inner:reward", "task.reward")("", {}) == 2.0
    assert f"importing {package.name}.inner from {package}" in caplog.text


def test_functions_take_what_they_are_given() -> None:
    class Callable:
        def __call__(self, completion: str, row: Any = None) -> float:
            return 0.0

    assert is_function(Callable(), 2)
    assert is_function(lambda steps: 0.0, 1)
    assert is_function(functools.partial(lambda limit, steps: 0.0, 3), 1)
    assert not is_function(lambda steps: 0.0, 2)
    assert not is_function(Callable, 0)
    assert not is_function({}, 1)
