"""The shape of the code, held by a test: imports point down only, torch stays where it belongs, files stay short."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from groupwise.config import named_code
from groupwise.runs import layout

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "groupwise"

# From the bottom up. A part is a folder or a file of src/groupwise, and may import the parts of the lines before its
# own.
LAYERS = (
    "base types",
    "config algo kernels workers sandbox",
    "distributed runs",
    "rewards",
    "tasks",
    "data",
    "models",
    "engines",
    "scoring",
    "evals",
    "training audit",
    "bench doctor",
    "planner web",
    "sweeps",
    "api",
    "cli",
    "__main__",
)
# What looks at runs reads their files and never meets the trainer.
READERS = {"audit": "base types runs rewards", "doctor": "base types runs audit", "web": "base types runs audit doctor"}
IN_THE_ROOT = {"__init__", "__main__", "types"}

WITH_TORCH = ["algo", "bench", "data", "distributed", "engines", "evals", "kernels", "models", "scoring", "training"]
"""The parts that may import torch. All others, and every command's module, import without it."""
TORCH_FREE_IN_THEM = (
    "distributed.launch",
    "scoring.scorer",
    "scoring.validate",
    "scoring.verify",
    "evals.compare",
    "evals.reach",
    "models.families",
)
STANDARD_LIBRARY_ONLY = ("types", "config", "base.seeds", "base.outside", "base.stats", "base.signals", "base.harmless")

READS_ON_ITS_OWN = {
    # What others may have written is read through base.outside, which refuses what would block or exhaust; these are:
    "base.outside": "the place itself",
    "web.bundle cli.recipes": "files of this package",
    "sandbox.zygote workers.supervisor": "/proc",
    "sandbox.program": "the program's own pipes",
    "workers.pool rewards.code.harness rewards.code.plain_values": "a pipe to a worker, with limits of its own",
    "engines.vllm.vllm_server": "answers of a server that we started",
    "rewards.code.unit_tests": "tests that a task wrote as JSON, with integers of any length",
    "rewards.json.score_json": "completions, with limits of its own",
    "web.dashboard.group_outline": "pieces of a line; any that is odd is read again through base.outside",
    "cli.sandbox": "files that a person names, which may be pipes",
    "runs.files": "nothing: a folder is opened to force its names to the disk",
    "evals.subject models.checkpoint_store models.merge": "weights of any size, to take a digest or copy them",
    "bench.other_library": "work that groupwise hands to a script, which runs where it is not installed",
    "models.cpu": "what the system says of its processor",
    "models.load": "what a tokenizer in memory says of itself",
}
"""Modules that read files or JSON without base.outside, and what."""
MAX_LOOP_LINES = 300
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80

MODULES = sorted(SOURCE.rglob("*.py"))
PYTHON_FILES = MODULES + sorted((ROOT / "tests").rglob("*.py"))


def name_of(path: Path) -> str:
    """ "groupwise.models.policy"; of a package, "groupwise.models"."""
    return ".".join(("groupwise", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def part_of(module: str) -> str:
    return [*module.split("."), "__init__"][1]


def imported_modules(path: Path) -> set[str]:
    """What a module imports, also inside functions; not what its annotations alone need."""
    found = set()
    tree = ast.parse(path.read_text())
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


NAMES = {name_of(path): path for path in MODULES}
OURS = {name: {found for found in imported_modules(path) if found in NAMES} - {name} for name, path in NAMES.items()}


def test_every_part_has_its_layer_and_imports_point_down() -> None:
    rank = {part: number for number, line in enumerate(LAYERS) for part in line.split()}
    parts = {part_of(name) for name in NAMES} - {"__init__"}
    assert parts == set(rank)
    wrong = [
        f"{name} imports {other}"
        for name, others in OURS.items()
        for other in others
        if part_of(name) not in ("__init__", part_of(other))
        and other != "groupwise"
        and rank[part_of(other)] >= rank[part_of(name)]
    ]
    assert wrong == []


def test_no_modules_import_each_other() -> None:
    """A package's `__init__` gathers names of its own modules, which may import each other through it."""
    gathering = {name for name, path in NAMES.items() if path.stem == "__init__"}
    TopologicalSorter({name: others - gathering for name, others in OURS.items() if name not in gathering}).prepare()


def test_what_looks_at_runs_reads_their_files_alone() -> None:
    for part, allowed in READERS.items():
        used = {part_of(other) for name in OURS if part_of(name) == part for other in OURS[name]}
        assert used <= {*allowed.split(), part}, part


def test_the_root_holds_the_records_and_the_api_alone() -> None:
    assert {path.stem for path in SOURCE.glob("*.py")} == IN_THE_ROOT


def test_no_two_modules_and_no_two_public_classes_share_a_name() -> None:
    """A command's file is named after the command, which may be the name of what it commands."""
    stems = Counter(path.stem for path in MODULES if part_of(name_of(path)) != "cli" and not path.stem.startswith("__"))
    assert [stem for stem, count in stems.items() if count > 1] == []
    classes = Counter(
        node.name
        for path in MODULES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in classes.items() if count > 1] == []


def test_what_needs_no_torch_does_not_import_it() -> None:
    modules = [
        name
        for name in NAMES
        if part_of(name) not in WITH_TORCH or name.removeprefix("groupwise.") in TORCH_FREE_IN_THEM
    ]
    code = f"import sys, importlib\nfor m in {modules!r}: importlib.import_module(m)\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("part", STANDARD_LIBRARY_ONLY)
def test_the_bottom_is_made_of_the_standard_library_alone(part: str) -> None:
    for name, path in NAMES.items():
        if name == f"groupwise.{part}" or name.startswith(f"groupwise.{part}."):
            foreign = {found.split(".")[0] for found in imported_modules(path)} - {"groupwise"}
            assert foreign <= set(sys.stdlib_module_names), name


def reads_on_its_own(node: ast.AST) -> bool:
    """Whether this is a way to read a file, or JSON or TOML, without base.outside."""
    if isinstance(node, ast.Attribute):
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        parsers = {"json": {"load", "loads", "JSONDecoder"}, "tomllib": {"load", "loads"}, "os": {"O_RDONLY", "fdopen"}}
        return node.attr in {"read_text", "read_bytes"} | parsers.get(owner, set())
    if not isinstance(node, ast.Call):
        return False
    is_builtin = isinstance(node.func, ast.Name) and node.func.id == "open"
    is_of_path = isinstance(node.func, ast.Attribute) and node.func.attr == "open"
    modes = [*node.args[is_builtin : is_builtin + 1], *(each.value for each in node.keywords if each.arg == "mode")]
    mode = ast.literal_eval(modes[0]) if modes and isinstance(modes[0], ast.Constant) else None if modes else "r"
    return (is_builtin or is_of_path) and mode is not None and not set(mode) & set("wax")


def test_what_others_may_have_written_is_read_in_one_place() -> None:
    reading = {
        name for name, path in NAMES.items() if any(map(reads_on_its_own, ast.walk(ast.parse(path.read_text()))))
    }
    assert reading == {f"groupwise.{name}" for names in READS_ON_ITS_OWN for name in names.split()}


def test_the_loop_fits_on_a_few_screens() -> None:
    assert len((SOURCE / "training" / "grpo.py").read_text().splitlines()) < MAX_LOOP_LINES


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_short(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < MAX_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length < MAX_FUNCTION_LINES, f"{node.name} has {length} lines"


IMPORTS_BY_NAME = {
    "groupwise.__init__": "our own modules, on first use",
    "groupwise.cli.__init__": "our own commands",
    "groupwise.config.named_code": "what a recipe names",
    "groupwise.rewards.code.harness": "the standard library, inside the sandbox",
    "groupwise.runs.sinks": "optional packages, whose names are constants",
    "groupwise.sandbox.zygote": "the standard library, inside the sandbox",
}


def test_modules_are_imported_by_a_computed_name_in_few_places() -> None:
    """What a recipe or a run names is code: `groupwise.config.named_code` alone decides what may be imported."""
    found = set()
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and not (node.args and isinstance(node.args[0], ast.Constant)):
                function = ast.unparse(node.func).rpartition(".")[2]
                if function in ("import_module", "__import__", "exec_module", "run_path", "run_module"):
                    found.add(f"groupwise.{path.relative_to(SOURCE).with_suffix('').as_posix().replace('/', '.')}")
    assert found == IMPORTS_BY_NAME.keys()


def test_a_run_directory_is_recognised_by_the_files_that_it_has() -> None:
    assert named_code.RUN_RECIPE == layout.RECIPE
    assert set(named_code.RUN_FILES) == {layout.LOCK, layout.INFO, layout.EVENTS}


def test_there_is_no_drawer() -> None:
    names = {path.stem for path in MODULES}
    assert not names & {"utils", "util", "common", "helpers", "misc"}
