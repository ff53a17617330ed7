"""Create a task of your own: a module, its test, and a recipe that trains at once.

Examples:
  groupwise new my-task
  groupwise new my-task --folder tasks
"""

from __future__ import annotations

import keyword
import re
import shlex
import sys
from pathlib import Path

from groupwise.cli.arguments import Options, argument, takes
from groupwise.cli.printing import say, say_commands
from groupwise.config import ConfigError

TASK = '''"""The task {name}: its problems, and how completions are scored."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

import groupwise as gw


@dataclass(frozen=True)
class {cls}(gw.GeneratedTask):
    """Write a word backwards. Change this: problems, score, and the name of the verifier.

    Fields are the keys of [task.options] in a recipe.
    """

    letters: int = 3
    """Letters per word."""
    num_train: int = 500
    num_held_out: int = 50

    verifier: ClassVar[str] = "{name}/1"
    fix: ClassVar[str] = "raise letters"

    @property
    def num_possible(self) -> int:
        return 26**self.letters

    def draw(self, generator: random.Random) -> tuple[str, gw.Problem]:
        """Return what makes a problem distinct, and the problem."""
        word = "".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=self.letters))
        message = gw.Message("user", f"Write {{word}} backwards, as <answer>word</answer>.")
        return word, gw.Problem(gw.stable_id("{name}", word), (message,), word[::-1])

    def score(self, problem: gw.Problem, completion: str) -> gw.Score:
        """Score a completion, from the arguments alone. Raise an exception if it cannot be judged."""
        found = gw.last_tag(completion)
        if found is None:
            return gw.Score(0.0, gw.Verdict.UNPARSED, {{"correct": 0.0}}, self.verifier, "no <answer> element")
        is_right = found.text.strip() == problem.answer
        parts = {{"correct": float(is_right)}}
        verdict = gw.Verdict.CORRECT if is_right else gw.Verdict.WRONG
        return gw.Score(sum(parts.values()), verdict, parts, self.verifier, found.text)

    def demonstrate(self, problem: gw.Problem) -> str:
        """Return a correct completion, for SFT stages and `groupwise validate`. Optional."""
        return f"<answer>{{problem.answer}}</answer>"
'''

TEST = '''"""The task {name}: gold answers score 1, wrong answers 0, and the splits share no problem."""

from __future__ import annotations

import pytest
from {module} import {cls}

import groupwise as gw

TASK = {cls}(num_train=50, num_held_out=10)


def test_splits_share_no_problem() -> None:
    train, held_out = gw.check_splits(TASK)
    assert (len(train), len(held_out)) == (50, 10)


def test_right_answers_are_correct() -> None:
    for problem in TASK.problems("held_out"):
        score = TASK.score(problem, TASK.demonstrate(problem))
        assert (score.verdict, score.reward) == (gw.Verdict.CORRECT, 1.0)


@pytest.mark.parametrize(
    ("completion", "verdict"),
    [("", gw.Verdict.UNPARSED), ("<answer></answer>", gw.Verdict.WRONG), ("<answer>!</answer>", gw.Verdict.WRONG)],
)
def test_wrong_answers_earn_nothing(completion: str, verdict: gw.Verdict) -> None:
    score = TASK.score(TASK.problems("held_out")[0], completion)
    assert (score.verdict, score.reward) == (verdict, 0.0)
'''

RECIPE = """# groupwise train {module}.toml, in the folder of {module}.py
name = "{name}"
description = "made by groupwise new"

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


@takes(
    argument("task", "name of the task, as in my-task"),
    argument("--folder", "the folder to write to", default=Path()),
)
def run(options: Options) -> None:
    """Write all files, or none if one of them exists."""
    texts = files_of(options.task)
    paths = [options.folder / name for name in texts]
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path} exists; choose another name, or another --folder")
    options.folder.mkdir(parents=True, exist_ok=True)
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    say(f"Wrote {', '.join(map(str, paths))}\nNext:")
    if options.folder != Path():
        say_commands(f"cd {shlex.quote(str(options.folder))}")
    say_commands(f"python -m pytest {paths[1].name}", f"groupwise train {paths[2].name}")


def files_of(name: str) -> dict[str, str]:
    """Return the text of each file by name: the module, its test, the recipe."""
    from groupwise.tasks import TASKS

    module = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name) or keyword.iskeyword(module):
        raise ConfigError(f"new {name!r}: use lower-case letters, digits and '-', as in my-task")
    if name in TASKS or module in sys.stdlib_module_names or module in ("groupwise", "torch", "pytest"):
        raise ConfigError(f"new {name!r}: a task or module of that name exists; choose another name")
    names = {"name": name, "module": module, "cls": "".join(part.capitalize() for part in module.split("_"))}
    texts = {f"{module}.py": TASK, f"test_{module}.py": TEST, f"{module}.toml": RECIPE}
    return {file: text.format(**names) for file, text in texts.items()}
