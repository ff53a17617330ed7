"""What the documentation says can be done, can be done: its code runs, its commands parse, its keys and links exist."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import groupwise
from groupwise import cli
from groupwise.cli.describe import pages
from groupwise.config import ConfigError, Recipe, build, load_recipe, make_recipe, parse_recipe
from groupwise.runs import METRICS, Run
from groupwise.runs.catalogue import metric
from groupwise.tasks import make_task, task_class
from groupwise.types import Verdict

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial" / "first-run.md"
# The lab log and the decisions tell of their day, the reference is generated: their links are checked, nothing else.
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
WRITTEN += sorted(
    path for room in ("tutorial", "how-to", "explanation") for path in (ROOT / "docs" / room).glob("*.md")
)
WRITTEN = [path for path in WRITTEN if path.exists()]
PAGES = sorted({*WRITTEN, *(ROOT / "docs").rglob("*.md")})
SHIPPED = {path.stem: path for path in (Path(groupwise.__file__).parent / "recipes").glob("*.toml")}

BASE = {
    "name": "base",
    "model": {"path": "tiny-qwen3"},
    "task": {"name": "countdown"},
    "stages": [{"algorithm": "grpo", "steps": 1, "problems_per_step": 2, "rollouts_per_problem": 2}],
}
"""What a part of a recipe is put into, to see whether its keys exist."""


class Block(NamedTuple):
    language: str
    text: str

    @property
    def file_name(self) -> str:
        """File name of a block whose first line is a comment with one: `# task.py`."""
        match = re.match(r"# ([\w.-]+\.\w+)\n", self.text)
        return match[1] if match else ""


def blocks(page: Path, language: str) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [Block(*pair) for pair in found if pair[0] == language]


def shell_lines(page: Path) -> list[str]:
    return [line.strip() for block in blocks(page, "bash") for line in block.text.splitlines() if line.strip()]


def commands(page: Path) -> list[list[str]]:
    """The arguments of each `groupwise …`, in blocks and between backticks."""
    inline = re.findall(r"`(groupwise [^`]+)`", page.read_text(encoding="utf-8"))
    return [
        shlex.split(line, comments=True)[1:] for line in [*shell_lines(page), *inline] if line.startswith("groupwise ")
    ]


def all_commands() -> Iterator[Any]:
    for page in WRITTEN:
        for arguments in commands(page):
            yield pytest.param(page, arguments, id=f"{page.stem}: {' '.join(arguments)}")


def of_pages(paths: list[Path]) -> list[Any]:
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in paths]


@pytest.mark.parametrize(("page", "arguments"), all_commands())
def test_commands_parse_and_their_keys_exist(page: Path, arguments: list[str]) -> None:
    if arguments in (["--help"], ["--version"]):
        return
    try:
        options = cli.make_parser().parse_args(arguments)
    except SystemExit:
        pytest.fail(f"{page}: no such command: groupwise {' '.join(arguments)}")
    if getattr(options, "overrides", []):
        check_task_options(recipe_named(page, options.recipe, options.overrides))


def recipe_named(page: Path, name: str, overrides: list[str]) -> Recipe:
    """A recipe that ships, or one that the page itself gives."""
    if name in SHIPPED:
        return load_recipe(SHIPPED[name], overrides)
    text = next(block.text for block in blocks(page, "toml") if block.file_name == name)
    return parse_recipe(text, overrides)


def check_task_options(recipe: Recipe) -> None:
    # Tasks that a page defines itself are built where that page's code is run.
    if ":" not in recipe.task.name:
        build(task_class(recipe.task.name), recipe.task.options, "task.options")


@pytest.mark.parametrize("page", of_pages(WRITTEN))
def test_recipes_and_parts_of_recipes_are_valid(page: Path) -> None:
    for block in blocks(page, "toml"):
        check_task_options(make_recipe(BASE | tomllib.loads(block.text)))


@pytest.mark.parametrize("page", of_pages(WRITTEN))
def test_inline_keys_exist(page: Path) -> None:
    """`a.b = value` between backticks is a key at the top, or of a stage."""
    text = page.read_text(encoding="utf-8")
    for key, value in re.findall(r"`((?:\w+\.)+\w+) = ([^`]+)`", text):
        tries = (key, f"stages.sft.{key}", f"stages.grpo.{key}")
        assert any(is_key(name, value) for name in tries), f"{page}: {key} = {value}"


def is_key(name: str, value: str) -> bool:
    try:
        load_recipe(SHIPPED["demo"], [f"{name}={value}"])
    except ConfigError as error:
        # Known, but not with the rest of the demo.
        return "unknown key" not in str(error) and "--set" not in str(error)
    return True


@pytest.mark.parametrize("page", of_pages(WRITTEN))
def test_rows_of_data_are_json(page: Path) -> None:
    for block in blocks(page, "json"):
        for line in block.text.splitlines():
            assert isinstance(json.loads(line), dict)


@pytest.mark.parametrize("page", of_pages(PAGES))
def test_links_resolve(page: Path) -> None:
    generated = {ROOT / "docs" / "reference" / name for name in pages()}
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, heading = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists() or path in generated, f"{page}: {target} leads nowhere"
        if heading and path.exists():
            assert heading in anchors(path), f"{page}: {target} leads to the top of its page"


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as common Markdown renderers make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", of_pages(WRITTEN))
def test_what_is_named_exists(page: Path) -> None:
    """Make targets, files of the repository, metrics."""
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for line in [*shell_lines(page), *re.findall(r"`(make [^`]+)`", text)]:
        if line.startswith("make "):
            assert line.split()[1] in targets, f"{page}: {line}"
    for name in re.findall(r"`((?:src|tests|docs|benchmarks)/[\w./-]+)`", text):
        assert "NAME" in name or "NNNN" in name or (ROOT / name).exists(), f"{page}: {name}"
    areas = {name.partition("/")[0] for name in METRICS}
    for name in re.findall(r"`([a-z]+/[a-z0-9_/]+)`", text):
        if name.partition("/")[0] in areas and not name.endswith("/"):
            metric(name)


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its task and recipe, each command about them and each further piece of Python, with two steps a stage."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "reverse_task", raising=False)
    for block in [*blocks(TUTORIAL, "python"), *blocks(TUTORIAL, "toml")]:
        if block.file_name:
            (tmp_path / block.file_name).write_text(block.text)
    own = [arguments for arguments in commands(TUTORIAL) if any("revers" in argument for argument in arguments)]
    assert [arguments[0] for arguments in own] == ["tasks", "train", "train", "export"]
    for arguments in own:
        shorter = ["--set", "stages.sft.steps=2", "--set", "stages.grpo.steps=2"] if arguments[0] == "train" else []
        assert cli.main([*arguments, *shorter]) == 0
    assert [record.stage for record in Run(tmp_path / "runs" / "reverse").steps()] == ["sft"] * 2 + ["grpo"] * 2
    assert cli.main(["train", "--resume", "runs/reverse"]) == 0
    capsys.readouterr()
    for block in blocks(TUTORIAL, "python"):
        if not block.file_name:
            exec(compile(block.text, str(TUTORIAL), "exec"), {})
    assert "pass@1" in capsys.readouterr().out
    sys.modules.pop("reverse_task", None)


@pytest.mark.parametrize("page", of_pages([page for page in WRITTEN if page != TUTORIAL]))
def test_other_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class in a file is a task: its demonstration is correct, an empty completion is not. The rest runs in order."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    names: dict[str, Any] = {"__name__": "example"}
    for number, block in enumerate(blocks(page, "python")):
        path = tmp_path / (block.file_name or f"block_{number}.py")
        path.write_text(block.text)
        if not block.file_name:
            exec(compile(block.text, str(path), "exec"), names)
            continue
        module = block.file_name.removesuffix(".py")
        for class_name in re.findall(r"^class (\w+)", block.text, flags=re.MULTILINE):
            task: Any = make_task(f"{module}:{class_name}", {})
            problem = task.problems("held_out")[0]
            assert task.score(problem, task.demonstrate(problem)).verdict is Verdict.CORRECT
            assert task.score(problem, "").verdict is not Verdict.CORRECT
    for block in blocks(page, "python"):
        sys.modules.pop(block.file_name.removesuffix(".py"), None)


@pytest.mark.parametrize("page", of_pages(WRITTEN))
def test_python_that_needs_a_real_model_has_known_arguments(page: Path) -> None:
    """Blocks of the language `py` are not run. Their calls of `gw.…` name functions and arguments that exist."""
    for block in blocks(page, "py"):
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("gw."):
                function = getattr(groupwise, node.func.attr)  # type: ignore[attr-defined]
                keywords = {keyword.arg: None for keyword in node.keywords if keyword.arg}
                inspect.signature(function).bind_partial(*node.args, **keywords)
