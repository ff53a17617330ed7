"""Completions that try to be paid without an answer: none is ever correct, and none raises, on any task."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.rewards.expression import score_countdown
from groupwise.rewards.math.score_math import score_math
from groupwise.tasks import make_task
from groupwise.tasks.task import Task
from groupwise.types import Problem, Verdict

CHEATS = [
    "",
    " ",
    "The answer is obvious.",
    "<answer></answer>",
    "<answer>number</answer>",
    "<answer>result</answer>",
    "<answer>(1 + 2) / 3</answer>",
    "<answer>{answer}</answer>",
    "<answer>correct</answer>",
    "<answer>true</answer>",
    "<answer>None</answer>",
    "<answer>nan</answer>",
    "<answer>inf</answer>",
    "<answer>0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20</answer>",
    "<answer>1=2=3=4=5=6=7=8=9=10=11=12</answer>",
    "<answer><answer></answer></answer>",
    "<answer>problem.answer</answer>",
    "<answer>__import__('sys').exit(0)</answer>",
    "<answer>9**9**9</answer>",
    "\\boxed{}",
    "\\boxed{\\boxed{}}",
    "\\boxed{x}",
    "\\boxed{0,1,2,3,4,5,6,7,8,9,10,11,12}",
    "\\boxed{1=2=3=4=5=6=7=8=9=10=11=12}",
    "\\boxed{\\text{the answer}}",
    "\\boxed{\\sum_{k=1}^{3} k}",
    "\\boxed{\\int_0^1 x}",
    "\\boxed{\\lim_{x \\to 6} x}",
    "\\boxed{\\prod_{k=1}^{3} k}",
    "\\boxed{3!}",
    "\\boxed{2 + 4}",
    "\\boxed{2 \\cdot 3}",
    "\\boxed{\\sqrt{36}}",
    "\\boxed{x = 6 = 6}",
    "\\boxed{x - x = 6}",
    "\\boxed{6 \\text{ or } 7}",
    "\\boxed{\\gcd(6, 12)}",
    "\\boxed{\\binom{6}{1}}",
    "\\boxed{\\sqrt{10^{5000}+1}}",
    "FINAL:",
    "FINAL: 6=5=4=3=2=1",
    "Final answer: six or seven",
    "\\boxed{9^{9^{9^{9}}}}",
    "\\boxed{(10^9)!}",
    "\\boxed{#1}",
    "####",
    "#### ####",
    "#### N",
    "see page 5, page 6, page 7",
    "\x00",
    "\ud800",
    "<answer>\x00\ud800</answer>",
    "$ " * 50_000,
    "<answer>" + "(" * 50_000 + ")" * 50_000 + "</answer>",
    "\\boxed{" * 10_000 + "}" * 10_000,
]


def _tasks(folder: Path) -> dict[str, Task]:
    gsm8k = folder / "gsm8k.jsonl"
    gsm8k.write_text(json.dumps({"question": "q", "answer": "#### 6"}) + "\n")
    math = folder / "math.jsonl"
    row = {"problem": "p", "solution": "s", "answer": "6", "subject": "Algebra", "level": 1}
    math.write_text(json.dumps(row) + "\n")
    own = folder / "own.jsonl"
    own.write_text(json.dumps({"prompt": "p", "answer": "6"}) + "\n")
    small = {"num_train": 30, "num_held_out": 1}
    jsonl = {"train": str(own), "held_out": str(own)}
    return {
        "format-copy": make_task("format-copy", {**small, "min_digits": 3}),
        "arithmetic": make_task("arithmetic", {**small, "levels": [3]}),
        "countdown": make_task("countdown", small),
        "gsm8k": make_task("gsm8k", {"train": str(gsm8k)}),
        "math": make_task("math", {"train": str(math), "held_out": str(gsm8k.with_name("math2.jsonl"))}),
        **{f"jsonl {match}": make_task("jsonl", {**jsonl, "match": match}) for match in ("number", "boxed", "math")},
    }


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Task, list[Problem]]]:
    folder = tmp_path_factory.mktemp("tasks")
    row = {"problem": "other", "solution": "s", "answer": "7", "subject": "Algebra", "level": 1}
    (folder / "math2.jsonl").write_text(json.dumps(row) + "\n")
    return [(task, list(task.problems("train"))) for task in _tasks(folder).values()]


@pytest.mark.parametrize("completion", CHEATS, ids=range(len(CHEATS)))
def test_cheats_are_never_correct(tasks: list[tuple[Task, list[Problem]]], completion: str) -> None:
    for task, problems in tasks:
        for problem in problems:
            score = task.score(problem, completion)
            assert score.verdict in (Verdict.WRONG, Verdict.UNPARSED), (task, completion)
            assert score.reward < 0.85
            assert score.reward == pytest.approx(sum(score.parts.values()))


def test_the_prompt_repeated_is_never_correct(tasks: list[tuple[Task, list[Problem]]]) -> None:
    for task, problems in tasks:
        for problem in problems:
            text = problem.messages[-1].content
            for completion in (text, f"<answer>{text}</answer>", f"\\boxed{{{text}}}", f"#### {text}"):
                assert task.score(problem, completion).verdict is not Verdict.CORRECT


@settings(deadline=None, max_examples=150)
@given(st.text(alphabet=st.sampled_from("<>/answer0123456789+-*() .=#\\boxd{}frc,$\x00\ud800"), max_size=60))
def test_any_text_is_scored(text: str) -> None:
    for completion in (text, f"<answer>{text}</answer>", f"\\boxed{{{text}}}"):
        for score in (score_countdown([3, 5, 7], 15, completion, ""), score_math("15", completion, "")):
            assert 0.0 <= score.reward <= 1.1
            assert (score.verdict is Verdict.CORRECT) == (score.parts["correct"] == 1.0)
