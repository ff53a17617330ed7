"""HumanEval, MBPP and one's own programming problems: rows, splits, prompts, hidden tests and gold solutions."""

import json
import logging
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from groupwise.config.build import ConfigError
from groupwise.rewards.code.score_code import shared_sandbox
from groupwise.rewards.code.unit_tests import read_plan
from groupwise.sandbox import SandboxUnavailable
from groupwise.tasks import check_splits, make_task
from groupwise.tasks.mbpp import IDS
from groupwise.tasks.rows import Row
from groupwise.tasks.task import Demonstrator, GoldWriter, RowScorer, Task
from groupwise.types import Problem, Verdict
from tests.real_data import FULL, SHIPPED, needs_full_data, read_rows


@pytest.fixture(scope="module", autouse=True)
def _isolation() -> None:
    try:
        shared_sandbox("auto").run("")
    except SandboxUnavailable as error:
        pytest.skip(f"no isolation on this machine: {error}")


def _write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _gold(task: Task, problem: Problem) -> str:
    assert isinstance(task, GoldWriter)
    assert isinstance(task, Demonstrator)
    completion = task.gold_completion(problem)
    assert completion is not None
    assert completion == task.demonstrate(problem)
    return completion


def _bare(task: Task, **values: Any) -> Problem:
    assert isinstance(task, RowScorer)
    return task.bare_problem(Row(values, "rows.jsonl, row 1"))


def _tests(problem: Problem) -> list[Any]:
    return list(read_plan(problem.answer)[0].tests)


HUMANEVAL_ROW = {
    "task_id": "HumanEval/0",
    "prompt": 'import math\n\ndef helper(x):\n    return x\n\ndef add(a, b):\n    """Sum."""\n',
    "entry_point": "add",
    "canonical_solution": "    return a + helper(b)\n",
    "test": "METADATA = {}\ndef check(candidate):\n    assert candidate(1, 2) == 3\n"
    "    assert candidate(1.5, 2) > helper(3)\n",
}


@pytest.fixture
def humaneval(tmp_path: Path) -> Task:
    rows = [
        {**HUMANEVAL_ROW, "task_id": f"HumanEval/{number}", "prompt": f"# {number}\n{HUMANEVAL_ROW['prompt']}"}
        for number in range(12)
    ]
    return make_task("humaneval", {"source": _write(tmp_path / "humaneval.jsonl", *rows)})


def test_humaneval(humaneval: Task) -> None:
    train, held_out = check_splits(humaneval)
    assert len(train) + len(held_out) == 12
    problem = min([*train, *held_out], key=lambda each: each.id)
    assert problem.id == "humaneval-0"
    text = problem.messages[0].content
    assert text.startswith("Complete this function.")
    assert text.endswith('"""Sum."""\n```')
    assert "assert" not in text
    assert humaneval.verifier == "code/2"
    assert humaneval.score(problem, _gold(humaneval, problem)).verdict is Verdict.CORRECT
    assert humaneval.score(problem, "    return a + b").verdict is Verdict.CORRECT
    assert humaneval.score(problem, "    return 3").reward == 0.5
    assert humaneval.score(problem, "It is a + b.").verdict is Verdict.UNPARSED


def test_humaneval_shares(humaneval: Task, tmp_path: Path) -> None:
    source = str(tmp_path / "humaneval.jsonl")
    for share, most in ((0.01, 2), (0.99, 12)):
        held_out = make_task("humaneval", {"source": source, "held_out_share": share}).problems("held_out")
        assert len(held_out) <= most
        assert len(held_out) >= most - 2
    for share in (0.0, 1.0, -1.0):
        with pytest.raises(ConfigError, match=r"held_out_share = .*must be above 0 and below 1"):
            make_task("humaneval", {"held_out_share": share})


def test_humaneval_bare_rows(humaneval: Task) -> None:
    published = _bare(humaneval, **HUMANEVAL_ROW)
    assert humaneval.score(published, _gold(humaneval, published)).reward == 1.0
    plain = _bare(humaneval, tests="assert f(1) == 2")
    assert humaneval.score(plain, "```python\ndef f(x): return x + 1\n```").reward == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": "def check(candidate):\n    pass\n"}, "row 1: no test"),
        ({"test": "def check(candidate)"}, "row 1: tests: not Python"),
        ({"entry_point": "a b"}, "row 1: entry_point = 'a b'"),
        ({"prompt": "def add(a, b"}, "row 1: code beside the tests: not Python"),
        ({"prompt": ""}, "row 1: 'prompt' is empty"),
    ],
)
def test_humaneval_bad_rows(tmp_path: Path, change: dict[str, str], message: str) -> None:
    source = _write(tmp_path / "bad.jsonl", {**HUMANEVAL_ROW, **change})
    with pytest.raises(ConfigError, match=message):
        make_task("humaneval", {"source": source}).problems("train")


def _mbpp_row(number: int, **change: Any) -> dict[str, Any]:
    return {
        "task_id": number,
        "text": f"Write a function to add {number}.",
        "code": f"import os\r\ndef add(a):\r\n  return a + {number}",
        "test_setup_code": "",
        "test_list": [f"assert add({a}) == {a + number}" for a in (1, 2, 3)],
        "challenge_test_list": [f"assert add(4) == {4 + number}"] if number % 2 else [],
        **change,
    }


@pytest.fixture
def mbpp_file(tmp_path: Path) -> str:
    numbers = (1, 10, 11, 13, 510, 511, 600, 601, 974)
    same = _mbpp_row(700, text="Write a  function to add 13.\n")
    return _write(tmp_path / "mbpp.jsonl", *map(_mbpp_row, numbers), same)


def test_mbpp(mbpp_file: str, caplog: pytest.LogCaptureFixture) -> None:
    task = make_task("mbpp", {"source": mbpp_file})
    with caplog.at_level(logging.WARNING):
        train, held_out = check_splits(task)
    assert "dropped 1 problems that are held out" in caplog.text
    assert [problem.id for problem in train] == ["mbpp-601", "mbpp-974"]
    assert [problem.id for problem in held_out] == ["mbpp-11", "mbpp-13", "mbpp-510"]
    validation = make_task("mbpp", {"source": mbpp_file, "held_out": "validation"}).problems("held_out")
    assert [problem.id for problem in validation] == ["mbpp-511", "mbpp-600"]
    for problem in (*train, *held_out):
        assert task.score(problem, _gold(task, problem)).verdict is Verdict.CORRECT


def test_mbpp_hidden_tests(mbpp_file: str) -> None:
    task = make_task("mbpp", {"source": mbpp_file})
    train, held_out = check_splits(task)
    assert train[0].messages[0].content == (
        "Write a function to add 601.\nYour code must pass:\nassert add(1) == 602\n"
        "Answer with the Python code in one ```python block."
    )
    assert _tests(train[0]) == ["assert add(1) == 602", "assert add(2) == 603"]
    assert _tests(held_out[0]) == [f"assert add({a}) == {a + 11}" for a in (1, 2, 3, 4)]
    for problem in (*train, *held_out):
        shown = problem.messages[0].content
        assert [test in shown for test in _tests(problem)] == [True] + [False] * (len(_tests(problem)) - 1)
    assert "604" not in train[0].answer
    bare = make_task("mbpp", {"source": mbpp_file, "show_tests": 0, "hidden_tests": 2}).problems("train")[0]
    assert bare.messages[0].content.startswith("Write a function to add 601.\nDefine `add`.\n")
    assert _tests(bare) == ["assert add(1) == 602"]


def test_mbpp_hard_coded_answers_earn_their_share(mbpp_file: str) -> None:
    task = make_task("mbpp", {"source": mbpp_file})
    train, held_out = check_splits(task)
    shown = "```python\ndef add(a): return {1: 602}.get(a)\n```"
    assert task.score(train[0], shown).reward == 0.5
    assert task.score(held_out[0], shown.replace("602", "12")).reward == 0.25


def test_mbpp_bare_rows(mbpp_file: str) -> None:
    task = make_task("mbpp", {"source": mbpp_file})
    problem = _bare(task, **_mbpp_row(5))
    assert len(_tests(problem)) == 4
    assert task.score(problem, _gold(task, problem)).reward == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_tests": 3}, r"hidden_tests = 3: must be from 0 to 2"),
        ({"hidden_tests": -1}, r"hidden_tests = -1"),
        ({"show_tests": 3}, r"show_tests = 3: expected 0 to 2, so that none of the hidden_tests = 1 is shown"),
        ({"show_tests": -1}, r"show_tests = -1"),
        ({"held_out": "train"}, r"held_out = 'train'"),
        ({"seconds": 0}, r"task\.options: seconds = 0\.0: must be from 0\.001 to 86,400"),
        ({"memory_mb": 0}, r"task\.options: memory_mb = 0"),
        ({"isolation": "docker"}, r"task\.options: isolation = 'docker': give one of 'auto'"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_task("mbpp", options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_list": []}, r"row 1: 'test_list' has 0 tests, and hidden_tests = 1 would hide all"),
        ({"test_list": ["assert add(1) == 2"]}, "has 1 tests"),
        ({"test_list": "assert add(1) == 2"}, "'test_list' is 'assert.*expected a list"),
        ({"test_list": ["assert add(1", "x", "y"]}, "row 1: tests: not Python"),
        ({"code": ""}, "'code' is empty"),
    ],
)
def test_mbpp_bad_rows(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    source = _write(tmp_path / "bad.jsonl", _mbpp_row(601, **change), _mbpp_row(11))
    with pytest.raises(ConfigError, match=message):
        make_task("mbpp", {"source": source}).problems("train")


def _own_row(number: int, **change: Any) -> dict[str, Any]:
    row = {
        "prompt": f"Write twice(x), problem {number}.",
        "tests": ["assert twice(1) == 2", {"call": "twice(3)", "expected": 6}],
        "hidden_tests": "for x in range(5):\n    assert twice(x) == 2 * x",
        "solution": "def twice(x):\n    return 2 * x",
        "level": number % 3,
    }
    return {**row, **change}


def test_own_problems(tmp_path: Path) -> None:
    source = _write(tmp_path / "own.jsonl", *map(_own_row, range(20)))
    task = make_task(
        "code-jsonl", {"train": source, "held_out_share": 0.3, "level_key": "level", "system": "Be brief."}
    )
    train, held_out = check_splits(task)
    assert len(train) + len(held_out) == 20
    assert 2 <= len(held_out) <= 12
    assert [message.role for message in train[0].messages] == ["system", "user"]
    assert train[0].meta["level"] in (0, 1, 2)
    assert (len(_tests(train[0])), len(_tests(held_out[0]))) == (2, 3)
    assert "range(5)" not in str(train[0])
    assert "range(5)" not in str(held_out[0].messages)
    hard_coded = "```python\ndef twice(x): return {1: 2, 3: 6}[x]\n```"
    assert task.score(train[0], hard_coded).verdict is Verdict.CORRECT
    assert task.score(held_out[0], hard_coded).reward == 2 / 3
    for problem in (train[0], held_out[0]):
        assert task.score(problem, _gold(task, problem)).verdict is Verdict.CORRECT


def test_own_problems_with_a_file_of_their_own(tmp_path: Path) -> None:
    train = _write(tmp_path / "train.jsonl", _own_row(1))
    held_out = _write(tmp_path / "test.jsonl", _own_row(2, prompt="Write it.", entry_point="twice", solution=None))
    task = make_task("code-jsonl", {"train": train, "held_out": held_out})
    (_,), (problem,) = check_splits(task)
    assert problem.messages[0].content.startswith("Write it.\nDefine `twice`.\nAnswer with")
    assert isinstance(task, GoldWriter)
    assert task.gold_completion(problem) is None
    assert isinstance(task, Demonstrator)
    with pytest.raises(ConfigError, match="has no solution to demonstrate"):
        task.demonstrate(problem)


def test_own_prompts_that_are_code(tmp_path: Path) -> None:
    row = _own_row(1, prompt='def twice(x):\n    """Two times x."""\n')
    task = make_task("code-jsonl", {"train": _write(tmp_path / "own.jsonl", row), "held_out_share": 0.001})
    (problem,) = task.problems("train")
    assert problem.messages[0].content.startswith("```python\ndef twice")
    assert task.score(problem, "    return x + x").verdict is Verdict.CORRECT


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tests": 5}, "row 1: 'tests' is 5: expected Python text or a list"),
        ({"tests": []}, "row 1: no test"),
        (
            {"tests": "assert g(1) == h(2)", "solution": ""},
            "the tests call g, h: name the solution's function",
        ),
        ({"entry_point": 5}, "'entry_point' is 5, expected a name"),
        ({"entry_point": [5]}, r"'entry_point' is \[5\], expected a name"),
        ({"setup": 5}, "'setup' is a number, expected a string"),
        ({"tests": [{"input": [1], "output": 2}], "solution": ""}, "arguments of a function need an 'entry_point'"),
        ({"prompt": " "}, "'prompt' is empty"),
    ],
)
def test_own_bad_rows(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    source = _write(tmp_path / "own.jsonl", _own_row(1, **change))
    with pytest.raises(ConfigError, match=message):
        make_task("code-jsonl", {"train": source, "held_out_share": 0.001}).problems("train")


def test_own_problems_need_a_file_and_bare_rows_do_not() -> None:
    task = make_task("code-jsonl", {})
    with pytest.raises(ConfigError, match=r"task\.options\.train: missing; set it to a \.jsonl path"):
        task.problems("train")
    with pytest.raises(ConfigError, match=r"held_out_share = 1\.0"):
        make_task("code-jsonl", {"held_out_share": 1.0})
    program = "```python\nimport sys\nprint(sum(map(int, sys.stdin.read().split())))\n```"
    stdin = _bare(task, tests=[{"stdin": "1 2", "stdout": "3"}, {"input": "4\n5\n", "output": "9\n"}])
    assert task.score(stdin, program).verdict is Verdict.CORRECT
    method = _bare(task, tests="def check(c):\n    assert c(1) == 2", entry_point="Solution().twice", setup="one = 1")
    completion = "```python\nclass Solution:\n    def twice(self, x): return 2 * x\n```"
    assert task.score(method, completion).verdict is Verdict.CORRECT


@pytest.mark.parametrize("name", ["humaneval", "mbpp", "code-jsonl"])
def test_tasks_travel(name: str) -> None:
    task = make_task(name, {})
    problem = _bare(task, tests="assert f(1) == 2")
    again = pickle.loads(pickle.dumps(task))
    assert again == task
    assert again.score(problem, "```python\ndef f(x): return 2\n```").verdict is Verdict.CORRECT


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_golds_of_the_shipped_rows(name: str) -> None:
    task = make_task(name, {"seconds": 20.0})
    problems = [_bare(task, **row) for row in read_rows(SHIPPED / f"{name}.jsonl")]
    assert len(problems) == 50
    scores = {problem.id: task.score(problem, _gold(task, problem)) for problem in problems}
    assert {each: score.detail for each, score in scores.items() if score.verdict is not Verdict.CORRECT} == {}
    for problem, other in pairwise(problems[:10]):
        assert task.score(problem, _gold(task, other)).verdict is Verdict.WRONG


def _real(name: str, **options: Any) -> tuple[Task, list[Problem], list[Problem]]:
    source = {"humaneval": "humaneval/HumanEval.jsonl", "mbpp": "mbpp/mbpp.jsonl"}[name]
    task = make_task(name, {"source": str(FULL / source), **options})
    train, held_out = check_splits(task)
    return task, list(train), list(held_out)


@needs_full_data
def test_splits_of_the_published_data() -> None:
    assert [len(part) for part in _real("humaneval")[1:]] == [80, 84]
    # 374 less three whose sentence is in the test part too.
    assert [len(part) for part in _real("mbpp")[1:]] == [371, 500]
    assert sum(map(len, IDS.values())) == 964


@needs_full_data
@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_some_golds(name: str) -> None:
    task, train, held_out = _real(name)
    # Those that use the judge, and MBPP's that use classes or trees of the solution, in any case.
    special = [problem for problem in (*train, *held_out) if read_plan(problem.answer)[1].num_judged]
    special += [problem for problem in (*train, *held_out) if problem.id in ("mbpp-601", "mbpp-367", "mbpp-927")]
    assert len(special) > 3
    for problem in [*special, *held_out[:40]]:
        assert task.score(problem, _gold(task, problem)).verdict is Verdict.CORRECT, problem.id


@needs_full_data
@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_solutions_of_other_problems_are_not_correct(name: str) -> None:
    task, train, held_out = _real(name)
    for problem, other in zip(held_out[:20], train, strict=False):
        assert task.score(problem, _gold(task, other)).verdict is Verdict.WRONG


@needs_full_data
@pytest.mark.slow
@pytest.mark.parametrize(("name", "file"), [("humaneval", "humaneval/HumanEval.jsonl"), ("mbpp", "mbpp/mbpp.jsonl")])
def test_all_golds(name: str, file: str) -> None:
    rows = read_rows(FULL / file)
    # MBPP 123 takes 4 s or so for numbers up to 9,999.
    task = make_task(name, {"seconds": 20.0})
    problems = [_bare(task, **row) for row in rows]
    assert len(problems) == {"humaneval": 164, "mbpp": 974}[name]
    scores = {problem.id: task.score(problem, _gold(task, problem)) for problem in problems}
    assert {name: score.detail for name, score in scores.items() if score.verdict is not Verdict.CORRECT} == {}
