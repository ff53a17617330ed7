"""The table of tasks, users' own tasks, and the check of the splits."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from groupwise.config.build import ConfigError
from groupwise.tasks import TASKS, check_splits, list_tasks, make_task
from groupwise.tasks.task import Task
from groupwise.types import Message, Problem, Score, Verdict

OWN_TASK = '''
from dataclasses import dataclass
from groupwise.types import Message, Problem, Score, Verdict

@dataclass(frozen=True)
class Echo:
    """Say it back."""
    word: str = "hi"
    verifier = "echo/1"
    def problems(self, split):
        return [Problem(f"{split}-1", (Message("user", f"{split} {self.word}"),), self.word)]
    def score(self, problem, completion):
        return Score(float(completion == problem.answer), Verdict.WRONG)

class NotADataclass:
    pass

@dataclass(frozen=True)
class Half:
    def problems(self, split):
        return []

function = len
'''


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"own_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(OWN_TASK)
    (tmp_path / f"{name}_broken.py").write_text("def f(:\n")
    (tmp_path / f"{name}_needs.py").write_text("import no_such_package_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    return name


def test_every_task_is_described_and_documented() -> None:
    lines = list_tasks()
    assert lines.keys() == TASKS.keys()
    assert len(set(lines.values())) == len(lines)
    assert all(20 < len(line) <= 110 and line.endswith(".") for line in lines.values())


def test_the_tasks_follow_the_protocol() -> None:
    for name in TASKS:
        task = make_task(name, {"train": "x.jsonl", "held_out_share": 0.1} if name == "jsonl" else {})
        assert isinstance(task, Task)
        assert task.verifier.partition("/")[2].isdecimal()


def test_every_option_has_a_type_that_recipes_can_set() -> None:
    task = make_task("arithmetic", {"levels": [1, 2], "format_bonus": 0, "num_train": 10, "num_held_out": 5})
    assert [problem.meta["level"] in (1, 2) for problem in task.problems("train")] == [True] * 10
    with pytest.raises(ConfigError, match=r"task\.options\.num_trian: unknown key; did you mean 'num_train'"):
        make_task("countdown", {"num_trian": 5})
    with pytest.raises(ConfigError, match=r"task\.options\.num_train = '5': expected a whole number"):
        make_task("countdown", {"num_train": "5"})
    with pytest.raises(ConfigError, match=r"task\.options\.style = 'tense': did you mean 'terse'"):
        make_task("format-copy", {"style": "tense"})


def test_unknown_names() -> None:
    with pytest.raises(ConfigError, match=r"task\.name = 'countdwn': unknown task; did you mean 'countdown'"):
        make_task("countdwn", {})


def test_importing_every_task_needs_no_torch() -> None:
    program = "import sys; from groupwise.tasks import list_tasks; list_tasks(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_own_task_from_the_current_folder(own_module: str) -> None:
    task = make_task(f"{own_module}:Echo", {"word": "ho"})
    train, held_out = check_splits(task)
    assert (train[0].answer, held_out[0].id) == ("ho", "held_out-1")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{}:NotADataclass", "not a dataclass"),
        ("{}:function", "'builtins' belongs to Python's standard library"),
        ("{}:Half", "lacks score, verifier"),
        ("{}:Ecko", "has no 'Ecko'; did you mean 'Echo'"),
        ("{}:", "has no ''"),
        ("{}_missing:Echo", "cannot import"),
        ("{}_broken:Echo", "cannot import"),
        ("{}_needs:Echo", "no_such_package_at_all"),
        (":Echo", "cannot import"),
        (".relative:Echo", "cannot import"),
    ],
)
def test_own_tasks_that_cannot_work(own_module: str, target: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_task(target.format(own_module), {})


@dataclass(frozen=True)
class Fixed:
    train: tuple[tuple[str, str], ...]
    held_out: tuple[tuple[str, str], ...]
    verifier = "fixed/1"

    def problems(self, split: str) -> Sequence[Problem]:
        pairs = self.train if split == "train" else self.held_out
        return [Problem(identifier, (Message("user", prompt),), "1") for identifier, prompt in pairs]

    def score(self, problem: Problem, completion: str) -> Score:
        return Score(0.0, Verdict.WRONG)


@pytest.mark.parametrize(
    ("train", "held_out", "message"),
    [
        ((), (("h1", "a"),), "the train split has no problems"),
        ((("t1", "a"),), (), "the held_out split has no problems"),
        ((("t1", "a"), ("t1", "b")), (("h1", "c"),), "the train split has 1 problems with a repeated id: t1 'b'"),
        ((("t1", "a"),), (("h1", "b"), ("h1", "c")), "the held_out split has 1 problems with a repeated id"),
        ((("t1", "a"), ("t2", "b")), (("t2", "c"),), "1 of 2 training problems are also held out.*t2 'b'.*Remove them"),
        ((("t1", "a  question\n"),), (("h1", "a question"),), "1 of 1 training problems are also held out"),
    ],
)
def test_splits_that_are_refused(
    train: tuple[tuple[str, str], ...], held_out: tuple[tuple[str, str], ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_splits(Fixed(train, held_out))


def test_splits_that_are_apart() -> None:
    train, held_out = check_splits(Fixed((("t1", "a"), ("t2", "A")), (("h1", "b"),)))
    assert (len(train), len(held_out)) == (2, 1)
