"""GSM8K, MATH and one's own .jsonl, on small files of their shape."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from groupwise.config.build import ConfigError
from groupwise.tasks import check_splits, make_task
from groupwise.tasks.rows import Row
from groupwise.tasks.task import Demonstrator, GoldWriter, RowScorer, Task
from groupwise.types import Message, Problem, Verdict


def _write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _demonstrated(task: Task, problem: Problem) -> str:
    assert isinstance(task, Demonstrator)
    return task.demonstrate(problem)


GSM8K_ROW = {"question": "How many?", "answer": "It is 6*12 = <<6*12=72>>72.\n#### 1,072"}


@pytest.fixture
def gsm8k(tmp_path: Path) -> Task:
    train = _write(tmp_path / "train.jsonl", GSM8K_ROW)
    held_out = _write(tmp_path / "test.jsonl", {"question": "How few?", "answer": "#### -3"})
    return make_task("gsm8k", {"train": train, "held_out": held_out})


def test_gsm8k_problem(gsm8k: Task) -> None:
    (problem,), (held_out,) = check_splits(gsm8k)
    assert (problem.answer, held_out.answer) == ("1,072", "-3")
    assert problem.messages[0].content.startswith("How many?\nReason step by step")
    assert _demonstrated(gsm8k, problem) == "It is 6*12 = 72.\n\\boxed{1,072}"


@pytest.mark.parametrize(
    ("completion", "verdict"),
    [
        (r"\boxed{1072}", Verdict.CORRECT),
        ("#### 1072", Verdict.CORRECT),
        ("#### $1,072.00", Verdict.CORRECT),
        (r"\boxed{1072 \text{ eggs}}", Verdict.CORRECT),
        ("#### 1072 eggs", Verdict.CORRECT),
        ("#### 5\n" + r"\boxed{1072}", Verdict.CORRECT),
        (r"\boxed{1072}" + "\n#### 5", Verdict.CORRECT),
        (r"\boxed{5}" + "\n#### 1072", Verdict.WRONG),
        (r"\boxed{n = 1072}", Verdict.CORRECT),
        (r"\boxed{-1072}", Verdict.WRONG),
        (r"\boxed{1071.9999}", Verdict.WRONG),
        (r"\boxed{1072 or 1073}", Verdict.UNPARSED),
        (r"\boxed{1071+1}", Verdict.UNPARSED),
        ("the answer is 1072", Verdict.UNPARSED),
        ("", Verdict.UNPARSED),
    ],
)
def test_gsm8k_score(gsm8k: Task, completion: str, verdict: Verdict) -> None:
    score = gsm8k.score(gsm8k.problems("train")[0], completion)
    assert score.verdict is verdict
    assert score.reward == score.parts["correct"] == float(verdict is Verdict.CORRECT)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q"}, "row 2: no key 'answer'; it has question"),
        ({"question": "q", "answer": "5"}, "row 2: 'answer' does not end in '#### N'"),
        ({"question": "q", "answer": "#### five"}, "row 2: 'answer' does not end"),
        ({"question": "", "answer": "#### 5"}, "row 2: 'question' is empty"),
        ({"question": None, "answer": "#### 5"}, "row 2: 'question' is null"),
    ],
)
def test_gsm8k_bad_rows(tmp_path: Path, row: object, message: str) -> None:
    train = _write(tmp_path / "train.jsonl", GSM8K_ROW, row)
    with pytest.raises(ConfigError, match=message):
        make_task("gsm8k", {"train": train}).problems("train")


def _math_row(problem: str, **changes: Any) -> dict[str, Any]:
    row = {"problem": problem, "solution": r"So $\boxed{\frac12}$.", "answer": r"\frac12", "subject": "Algebra"}
    return {**row, "level": "Level 5", **changes}


def test_math_filters_and_blemishes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = _write(
        tmp_path / "train.jsonl",
        _math_row("a"),
        _math_row("b", level=2),
        _math_row("c", level="3", subject="Geometry"),
        _math_row("no answer", answer=""),
        _math_row("no level", level="Level ?"),
        _math_row("a "),
        _math_row("held out"),
    )
    held_out = _write(tmp_path / "test.jsonl", _math_row("held out"), _math_row("easy", level=1))
    files = {"train": train, "held_out": held_out}
    with caplog.at_level(logging.WARNING):
        problems, _ = check_splits(make_task("math", files))
    assert [problem.messages[0].content[0] for problem in problems] == ["a", "b", "c"]
    assert [problem.meta["level"] for problem in problems] == [5, 2, 3]
    assert "skipped 2 rows: no answer or no level" in caplog.text
    assert "skipped 1 rows that repeat a problem" in caplog.text
    assert "dropped 1 problems that are held out" in caplog.text
    hard, hard_held_out = check_splits(make_task("math-hard", files))
    assert ([problem.meta["level"] for problem in hard], len(hard_held_out)) == ([5], 1)
    geometry = make_task("math", {**files, "subjects": ["Geometry"]}).problems("train")
    assert [problem.meta["subject"] for problem in geometry] == ["Geometry"]
    task = make_task("math", files)
    score = task.score(problems[0], _demonstrated(task, problems[0]))
    assert (score.verdict, score.reward) == (Verdict.CORRECT, pytest.approx(1.1))


def test_math_as_it_is_on_the_hub(tmp_path: Path) -> None:
    """No answer column, and the subject is called type."""
    row = {"problem": "p", "solution": r"\boxed{7}", "type": "Prealgebra", "level": "Level 1"}
    problem = make_task("math", {"held_out": _write(tmp_path / "a.jsonl", row)}).problems("held_out")[0]
    assert (problem.answer, problem.meta["subject"]) == ("7", "Prealgebra")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (_math_row("p", level=6), "row 1: 'level' is '6', expected 1 to 5"),
        (_math_row("p", level=None), "row 1: 'level' is 'None'"),
        (_math_row("p", answer=5), "row 1: 'answer' is 5, expected a string"),
        (_math_row("p", subject=""), "row 1: 'subject' is empty"),
        ({"problem": "p"}, "row 1: no key 'solution'"),
        (_math_row(""), "row 1: 'problem' is empty"),
    ],
)
def test_math_bad_rows(tmp_path: Path, row: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_task("math", {"held_out": _write(tmp_path / "a.jsonl", row)}).problems("held_out")


def test_math_with_many_answers_missing_is_a_broken_file(tmp_path: Path) -> None:
    rows = [_math_row(f"p{number}", answer="") for number in range(5)]
    with pytest.raises(ConfigError, match="row 1: no answer or no level, as in 5 of 5 rows"):
        make_task("math", {"held_out": _write(tmp_path / "a.jsonl", *rows)}).problems("held_out")


def test_math_options() -> None:
    with pytest.raises(ConfigError, match="'Algbra' is not a subject of MATH; did you mean 'Algebra'"):
        make_task("math", {"subjects": ["Algbra"]})
    for levels in ([], [0], [6]):
        with pytest.raises(ConfigError, match=r"levels(\.0)? = .* from 1 to 5"):
            make_task("math", {"levels": levels})


def _own(tmp_path: Path, *rows: object, **options: Any) -> Task:
    return make_task("jsonl", {"train": _write(tmp_path / "own.jsonl", *rows), "held_out_share": 0.2, **options})


def test_jsonl_split_by_hash(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{number}", "answer": number, "hard": number % 3} for number in range(200)]
    train, held_out = check_splits(_own(tmp_path, *rows, level_key="hard", system="Be brief."))
    assert len(train) + len(held_out) == 200
    assert 20 < len(held_out) < 60
    assert train[0].messages == (Message("system", "Be brief."), Message("user", train[0].messages[1].content))
    assert {problem.meta["level"] for problem in train} == {0, 1, 2}
    more, _ = check_splits(_own(tmp_path, *rows, *({"prompt": f"q{number}", "answer": 1} for number in range(50))))
    assert {problem.id for problem in train} < {problem.id for problem in more}


def test_jsonl_with_a_file_to_hold_out(tmp_path: Path) -> None:
    held_out = _write(tmp_path / "held_out.jsonl", {"question": "other", "gold": "x"})
    options = {"prompt_key": "question", "answer_key": "gold", "held_out": held_out, "held_out_share": 0.0}
    train, other = check_splits(_own(tmp_path, {"question": "one", "gold": "y"}, **options))
    assert (train[0].answer, other[0].answer) == ("y", "x")


@pytest.mark.parametrize(
    ("match", "gold", "completion", "verdict"),
    [
        ("exact", "yes", " yes\n", Verdict.CORRECT),
        ("exact", "yes it is", "hm <answer>yes  it is</answer>", Verdict.CORRECT),
        ("exact", "yes", "Yes", Verdict.WRONG),
        ("exact", "yes", "yes, or no", Verdict.WRONG),
        ("exact", "yes", "", Verdict.UNPARSED),
        ("exact", "yes", "yes <answer> </answer>", Verdict.UNPARSED),
        ("exact", "\\boxed{yes}", "<answer>\\boxed{yes}</answer>", Verdict.CORRECT),
        ("exact", "yes", "<answer>\\boxed{yes}</answer>", Verdict.WRONG),
        ("number", 12, "<answer>\\fbox{12}</answer>", Verdict.CORRECT),
        ("number", 12, "so it is 12.", Verdict.CORRECT),
        ("number", 0.5, r"\boxed{\frac12}", Verdict.CORRECT),
        ("number", 12, "<answer>12</answer>, not 13", Verdict.CORRECT),
        ("number", 12, "#### 12\n<answer>13</answer>", Verdict.CORRECT),
        ("number", 12, "<answer>12</answer>\n#### 13", Verdict.WRONG),
        ("number", 0.5, "#### 0,5", Verdict.CORRECT),
        ("number", 12, "<answer>none</answer> 12", Verdict.UNPARSED),
        ("number", 12, "twelve", Verdict.UNPARSED),
        ("boxed", "a b", r"\boxed{ a  b }", Verdict.CORRECT),
        ("boxed", "1/2", r"\boxed{0.5}", Verdict.WRONG),
        ("boxed", "1/2", "1/2", Verdict.UNPARSED),
        ("math", "1/2", r"\boxed{0.5}", Verdict.CORRECT),
        ("math", "1/2", r"\boxed{0.6}", Verdict.WRONG),
        ("math", "1/2", "0.5", Verdict.UNPARSED),
        ("math", "2\\sqrt2", r"\boxed{\sqrt8}", Verdict.CORRECT),
        ("math", "1 m", r"\boxed{1 \text{ cm}}", Verdict.WRONG),
    ],
)
def test_jsonl_matches(tmp_path: Path, match: str, gold: object, completion: str, verdict: Verdict) -> None:
    task = _own(tmp_path, {"prompt": "p", "answer": gold}, match=match)
    problem = [*task.problems("train"), *task.problems("held_out")][0]
    score = task.score(problem, completion)
    assert score.verdict is verdict
    assert score.reward == float(verdict is Verdict.CORRECT)


@pytest.mark.parametrize(
    ("match", "marks", "completion", "verdict"),
    [
        ("exact", ["final"], "FINAL: 12", Verdict.CORRECT),
        ("exact", ["final"], "12", Verdict.UNPARSED),
        ("number", ["hashes", "boxed"], "\\boxed{12}\n#### 13", Verdict.WRONG),
        ("number", ["hashes"], "12", Verdict.UNPARSED),
        ("math", ["number"], "it is 12", Verdict.CORRECT),
        ("math", ["tag", "final"], "Final answer: 24/2", Verdict.CORRECT),
        ("boxed", ["tag"], "<answer>12</answer>", Verdict.CORRECT),
    ],
)
def test_jsonl_marks(tmp_path: Path, match: str, marks: list[str], completion: str, verdict: Verdict) -> None:
    task = _own(tmp_path, {"prompt": "p", "answer": 12}, match=match, answer_marks=marks)
    problem = [*task.problems("train"), *task.problems("held_out")][0]
    assert task.score(problem, completion).verdict is verdict
    assert isinstance(task, GoldWriter)
    gold = task.gold_completion(problem)
    assert gold is not None
    assert task.score(problem, gold).verdict is Verdict.CORRECT


@pytest.mark.parametrize(
    ("name", "marks", "completion"),
    [
        ("gsm8k", ["final"], "FINAL: 12"),
        ("gsm8k", ["tag", "number"], "it is 12"),
        ("math", ["hashes"], "#### 12"),
        ("math", ["final", "boxed"], "\\boxed{12}"),
    ],
)
def test_marks_of_a_recipe(name: str, marks: list[str], completion: str) -> None:
    task = make_task(name, {"answer_marks": marks})
    assert isinstance(task, RowScorer)
    assert isinstance(task, GoldWriter)
    problem = task.bare_problem(Row({"answer": "12"}, "rows.jsonl, row 1"))
    for text in (completion, task.gold_completion(problem)):
        assert text is not None
        assert task.score(problem, text).verdict is Verdict.CORRECT
    assert task.score(problem, completion.replace("12", "13")).verdict is Verdict.WRONG


@pytest.mark.parametrize("name", ["gsm8k", "math"])
def test_bad_marks(name: str) -> None:
    with pytest.raises(ConfigError, match=r"task\.options: answer_marks = \[\]: expected one or more of boxed"):
        make_task(name, {"answer_marks": []})
    with pytest.raises(ConfigError, match=r"task\.options\.answer_marks\.1 = 'box': did you mean 'boxed'"):
        make_task(name, {"answer_marks": ["final", "box"]})
    with pytest.raises(ConfigError, match="each once"):
        make_task(name, {"answer_marks": ["final", "final"]})


@pytest.mark.parametrize(
    ("name", "values", "answer", "message"),
    [
        ("gsm8k", {"answer": "so\n#### 1,072", "question": "How many?"}, "1,072", ""),
        ("gsm8k", {"answer": "72"}, "72", ""),
        ("gsm8k", {"answer": "many"}, "", "expected a number, or a solution that ends in '#### N'"),
        ("math", {"answer": "\\frac12", "problem": "p"}, "\\frac12", ""),
        ("math", {"solution": "so \\boxed{7}"}, "7", ""),
        ("math", {"answer": 7}, "7", ""),
        ("gsm8k", {"answer": 7}, "7", ""),
        ("math", {"answer": ""}, "", "'answer' is empty"),
        ("math", {"solution": "so 7"}, "", "no \\\\boxed{} in 'solution'"),
        ("math", {"problem": "p"}, "", "no key 'answer'"),
    ],
)
def test_bare_problems(name: str, values: dict[str, Any], answer: str, message: str) -> None:
    task = make_task(name, {})
    assert isinstance(task, RowScorer)
    row = Row(values, "rows.jsonl, row 1")
    if message:
        with pytest.raises(ConfigError, match=message):
            task.bare_problem(row)
        return
    assert task.bare_problem(row).answer == answer


def test_bare_problems_of_a_file(tmp_path: Path) -> None:
    task = _own(tmp_path, {"prompt": "p", "answer": 12}, match="number")
    assert isinstance(task, RowScorer)
    problem = task.bare_problem(Row({"answer": 12}, "rows.jsonl, row 1"))
    assert (problem.answer, task.score(problem, "12").verdict) == ("12", Verdict.CORRECT)
    with pytest.raises(ConfigError, match=r"rows\.jsonl, row 2: 'answer' is 'many', which is not a number"):
        task.bare_problem(Row({"answer": "many"}, "rows.jsonl, row 2"))


def test_math_refuses_the_problem_repeated(tmp_path: Path) -> None:
    row = _math_row("Simplify $\\sqrt{50}$.", answer="5\\sqrt{2}")
    task = make_task("math", {"held_out": _write(tmp_path / "a.jsonl", row)})
    problem = task.problems("held_out")[0]
    assert task.score(problem, r"\boxed{\sqrt{50}}").verdict is Verdict.WRONG
    assert task.score(problem, r"\boxed{\sqrt{2} \cdot 5}").verdict is Verdict.CORRECT


def test_jsonl_demonstrations(tmp_path: Path) -> None:
    row = {"prompt": "p", "answer": "a", "worked": "so <answer>a</answer>"}
    task = _own(tmp_path, row, demonstration_key="worked")
    problem = [*task.problems("train"), *task.problems("held_out")][0]
    assert _demonstrated(task, problem) == "so <answer>a</answer>"
    plain = _own(tmp_path, row)
    with pytest.raises(ConfigError, match=r"task\.options\.demonstration_key: missing"):
        _demonstrated(plain, [*plain.problems("train"), *plain.problems("held_out")][0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out_share": 0.0}, "set either held_out .* or held_out_share"),
        ({"held_out": "b.jsonl"}, "set either held_out .* or held_out_share"),
        ({"held_out_share": 1.0}, "held_out_share = 1.0"),
        ({"match": "exakt"}, "did you mean 'exact'"),
    ],
)
def test_jsonl_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _own(tmp_path, {"prompt": "p", "answer": "a"}, **options)


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"prompt": "p"}, {}, "row 1: no key 'answer'"),
        ({"prompt": "p", "answer": " "}, {}, "row 1: 'answer' is empty"),
        ({"prompt": "p", "answer": None}, {}, "row 1: 'answer' is null, expected a string or a number"),
        ({"prompt": "p", "answer": True}, {}, "row 1: 'answer' is a boolean"),
        ({"prompt": "p", "answer": "five"}, {"match": "number"}, "row 1: 'answer' is 'five', which is not a number"),
        ({"prompt": ["p"], "answer": "a"}, {}, "row 1: 'prompt' is a list, but not one of messages"),
        ({"prompt": "p", "answer": "a"}, {"level_key": "level"}, "row 1: no key 'level'"),
        ({"prompt": "p", "answer": "a"}, {"demonstration_key": "worked"}, "row 1: no key 'worked'"),
    ],
)
def test_jsonl_bad_rows(tmp_path: Path, row: object, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _own(tmp_path, row, **options).problems("train")


def test_jsonl_repeated_prompts_are_refused(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{number}", "answer": "a"} for number in range(30)]
    with pytest.raises(ConfigError, match="1 problems with a repeated id"):
        check_splits(_own(tmp_path, *rows, {"prompt": " p3 ", "answer": "b"}))
