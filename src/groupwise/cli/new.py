"""A task of one's own, begun: a module, its test and a recipe that runs at once."""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from pathlib import Path

TASK = '''"""The task {name}: where its problems come from and how completions are scored."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from groupwise.rewards.extract import last_tag
from groupwise.tasks.generated import GeneratedTask
from groupwise.tasks.rows import stable_id
from groupwise.types import Message, Problem, Score, Verdict


@dataclass(frozen=True)
class {cls}(GeneratedTask):
    """Write a word backwards. Change this: problems, score, and the name of the verifier.

    Fields are the keys of [task.options] in a recipe.
    """

    letters: int = 3
    """Letters of a word."""
    num_train: int = 500
    num_held_out: int = 50

    verifier: ClassVar[str] = "{name}/1"
    fix: ClassVar[str] = "raise letters"

    @property
    def num_possible(self) -> int:
        return 26**self.letters

    def draw(self, generator: random.Random) -> tuple[str, Problem]:
        """Return what makes a problem distinct, and the problem."""
        word = "".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=self.letters))
        message = Message("user", f"Write {{word}} backwards, as <answer>word</answer>.")
        return word, Problem(stable_id("{name}", word), (message,), word[::-1])

    def score(self, problem: Problem, completion: str) -> Score:
        """Use the arguments alone. Raise an exception where judging fails; never return `wrong` for that."""
        found = last_tag(completion)
        if found is None:
            return Score(0.0, Verdict.UNPARSED, {{"correct": 0.0}}, self.verifier, "no <answer> element")
        is_right = found.text.strip() == problem.answer
        parts = {{"correct": float(is_right)}}
        verdict = Verdict.CORRECT if is_right else Verdict.WRONG
        return Score(sum(parts.values()), verdict, parts, self.verifier, found.text)

    def demonstrate(self, problem: Problem) -> str:
        """Return a correct completion for SFT stages and `groupwise validate`. Optional."""
        return f"<answer>{{problem.answer}}</answer>"
'''

TEST = '''"""The task {name}: gold answers score 1, wrong ones 0, and the splits share nothing."""

from __future__ import annotations

import pytest
from {module} import {cls}

from groupwise.tasks import check_splits
from groupwise.types import Verdict

TASK = {cls}(num_train=50, num_held_out=10)


def test_splits_share_no_problem() -> None:
    train, held_out = check_splits(TASK)
    assert (len(train), len(held_out)) == (50, 10)


def test_right_answers_are_correct() -> None:
    for problem in TASK.problems("held_out"):
        score = TASK.score(problem, TASK.demonstrate(problem))
        assert (score.verdict, score.reward) == (Verdict.CORRECT, 1.0)


@pytest.mark.parametrize(
    ("completion", "verdict"),
    [("", Verdict.UNPARSED), ("<answer></answer>", Verdict.WRONG), ("<answer>no such word</answer>", Verdict.WRONG)],
)
def test_what_is_not_right_earns_nothing(completion: str, verdict: Verdict) -> None:
    score = TASK.score(TASK.problems("held_out")[0], completion)
    assert (score.verdict, score.reward) == (verdict, 0.0)
'''

RECIPE = """# groupwise train {module}.toml, in the folder of {module}.py
name = "{name}"
description = "begun with groupwise new"

[model]
path = "tiny-qwen3"  # a hub id, a folder or a .gguf file

[task]
name = "{module}:{cls}"

[[stages]]
algorithm = "sft"
steps = 40
demonstrations_per_step = 32
optimizer = {{ learning_rate = 1e-3 }}

[[stages]]
algorithm = "grpo"
steps = 20
problems_per_step = 8
rollouts_per_problem = 8
sampling = {{ max_new_tokens = 24 }}
optimizer = {{ learning_rate = 1e-4 }}
"""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    new = commands.add_parser("new", help="begin a task of your own: a module, its test, a recipe")
    new.add_argument("task", help="its name, as in my-task")
    new.add_argument("--folder", type=Path, default=Path(), help="where the files go; default here")
    new.set_defaults(command=_new)


def _new(options: argparse.Namespace) -> int:
    texts = files_of(options.task)
    written = write_files(options.folder, texts)
    module = written[0].stem
    print(f"Wrote {', '.join(str(path) for path in written)}")
    print(f"Try: cd {options.folder} && python -m pytest {written[1].name} && groupwise train {module}.toml")
    return 0


def files_of(name: str) -> dict[str, str]:
    """File name → text, the module first."""
    from groupwise.config import ConfigError
    from groupwise.tasks import TASKS

    module = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name) or keyword.iskeyword(module):
        raise ConfigError(f"new {name!r}: a task is named with small letters, digits and '-', as in my-task")
    if name in TASKS or module in sys.stdlib_module_names or module in ("groupwise", "torch", "pytest"):
        raise ConfigError(f"new {name!r}: there is a task or a module of that name already; choose another one")
    names = {"name": name, "module": module, "cls": "".join(part.capitalize() for part in module.split("_"))}
    return {
        f"{module}.py": TASK.format(**names),
        f"test_{module}.py": TEST.format(**names),
        f"{module}.toml": RECIPE.format(**names),
    }


def write_files(folder: Path, texts: dict[str, str]) -> list[Path]:
    """All of them or none: nothing that is there is overwritten."""
    from groupwise.config import ConfigError

    paths = [folder / name for name in texts]
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path}: is there already; choose another name, or another --folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths
