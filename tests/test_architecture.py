"""The shape of the code, held by a test: imports point down only, torch stays where it belongs, files stay short."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "groupwise"

# What each part may import of groupwise. A part is a folder or a file of src/groupwise.
ALLOWED = {
    "types": set(),
    "stats": set(),
    "inert": set(),
    "seeds": set(),
    "algo": set(),
    "control": set(),
    "sandbox": {"sandbox"},
    "workers": {"workers"},
    "config": {"config"},
    "rewards": {"types", "config", "rewards", "sandbox"},
    "tasks": {"types", "config", "rewards", "tasks"},
    "runlog": {"types", "runlog"},
    "checkpoint": {"runlog"},
    "kernels": {"kernels"},
    "distributed": {"config", "distributed"},
    "engines": {"types", "engines", "kernels"},
    "data": {"types", "config", "seeds", "runlog", "tasks", "data"},
    "models": {"distributed", "types", "config", "algo", "data", "kernels", "runlog", "checkpoint", "models"},
    "verifiers": {"types", "config", "rewards", "runlog", "tasks", "verifiers", "workers"},
    "scoring": {"types", "config", "algo", "rewards"},
    "collect": {"distributed", "types", "config", "seeds", "data", "engines", "models", "scoring", "verifiers"},
    "credit": {"types", "config", "algo", "scoring"},
    "stepmetrics": {"types", "config", "algo", "stats", "scoring"},
    "update": {"types", "config", "algo", "data", "models"},
    "rehearsal": {"config", "data", "models"},
    "evals": {
        "distributed",
        "types",
        "config",
        "seeds",
        "stats",
        "engines",
        "models",
        "scoring",
        "collect",
        "verifiers",
        "checkpoint",
        "data",
        "evals",
        "rewards",
        "runlog",
    },
    "training": {"types", "config", "checkpoint", "collect", "control", "data", "engines", "evals", "models"}
    | {"runlog", "tasks", "traces", "verifiers"},
    "traces": {"types", "algo", "data", "models"},
    "grpo": {"types", "config", "algo", "collect", "credit", "data", "models", "scoring", "stepmetrics"}
    | {"seeds", "training", "update"},
    "sft": {"types", "config", "data", "models", "runlog", "seeds", "stepmetrics", "tasks", "training", "update"},
    "pipeline": {
        "distributed",
        "",
        "config",
        "checkpoint",
        "collect",
        "control",
        "data",
        "engines",
        "evals",
        "grpo",
        "models",
    }
    | {"audit", "doctor", "rehearsal", "runlog", "sft", "tasks", "training", "verifiers", "workers"},
    "evaluate": {"types", "config", "collect", "control", "engines", "evals", "models", "pipeline", "rewards"}
    | {"", "runlog", "tasks", "verifiers"},
    "compare": {"types", "config", "evals", "runlog", "stats"},
    "web": {"web"},
    "reports": {"inert", "types", "stats", "runlog", "audit", "doctor", "evals", "reports", "web"},
    "audit": {"inert", "types", "stats", "runlog", "rewards", "audit", "web"},
    "doctor": {"types", "stats", "runlog", "audit", "doctor"},
    "dashboard": {"inert", "types", "runlog", "doctor", "evals", "reports", "dashboard", "web"},
    "reach": {"runlog", "stats"},
    "reference": {"config", "runlog", "tasks"},
    "sample": {"types", "config", "engines", "models", "rewards", "seeds", "tasks", "verifiers", "workers"},
    "bench": {"", "types", "config", "algo", "collect", "data", "engines", "evals", "evaluate", "grpo", "models"}
    | {"pipeline", "runlog", "stats", "tasks", "update", "verifiers", "bench"},
    "plan": {"config", "models", "tasks", "bench", "plan"},
    "sweeps": {"inert", "types", "stats", "config", "runlog", "reports", "plan", "workers", "sweeps"},
    "demo": {"", "types", "config", "pipeline", "reports", "runlog"},
    "cli": None,
    "__main__": {"cli"},
    "__init__": set(),
}

WITHOUT_TORCH = (
    "types",
    "stats",
    "seeds",
    "config",
    "rewards",
    "sandbox",
    "workers",
    "verifiers",
    "audit",
    "doctor",
    "dashboard",
    "compare",
    "tasks",
    "runlog",
    "reports",
    "reach",
    "reference",
    "cli",
    "control",
    "plan",
    "sweeps",
    "web",
)
STANDARD_LIBRARY_ONLY = ("types", "stats", "seeds", "config")

MAX_LOOP_LINES = 300
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80

MODULES = sorted(path for path in SOURCE.rglob("*.py"))
PYTHON_FILES = MODULES + sorted((ROOT / "tests").rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            if node.module == "groupwise":
                found |= {f"groupwise.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    part = part_of(path)
    assert part in ALLOWED, f"{part} is new: say in ALLOWED what it may import"
    allowed = ALLOWED[part]
    ours = {name for name in imported_modules(path) if name.split(".")[0] == "groupwise"}
    parts = {name.split(".")[1] if "." in name else "" for name in ours}
    if allowed is not None:
        assert parts <= allowed, f"{part} must not import {', '.join(sorted(parts - allowed))}"
    if part in STANDARD_LIBRARY_ONLY:
        foreign = {name.split(".")[0] for name in imported_modules(path)} - {"groupwise"}
        assert foreign <= set(sys.stdlib_module_names), f"{part} is for the standard library alone"


def test_what_needs_no_torch_does_not_import_it() -> None:
    modules = [
        "groupwise." + ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for path in MODULES
        if part_of(path) in WITHOUT_TORCH
    ]
    code = f"import sys, importlib\nfor m in {modules!r}: importlib.import_module(m)\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_loop_fits_on_a_few_screens() -> None:
    assert len((SOURCE / "grpo.py").read_text().splitlines()) < MAX_LOOP_LINES


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_short(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < MAX_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length < MAX_FUNCTION_LINES, f"{node.name} has {length} lines"


def test_there_is_no_drawer() -> None:
    names = {path.stem for path in MODULES}
    assert not names & {"utils", "util", "common", "helpers", "misc"}
