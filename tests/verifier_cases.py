"""A problem with a gold completion for every task, and completions that are expensive to score."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.tasks import make_task
from groupwise.tasks.rows import Row
from groupwise.tasks.task import RowScorer, Task
from groupwise.types import Problem

SIZE = 100_000
SAME_VERIFIER = {"humaneval": "code-jsonl", "mbpp": "code-jsonl"}
"""Tasks without a case, and the task whose `score` they share."""
FORMS = {
    "bare": "{}",
    "tag": "<answer>{}</answer>",
    "box": "\\boxed{{{}}}",
    "json": "```json\n{}\n```",
    "sql": "```sql\n{}\n```",
    "python": "```python\n{}\n```",
}

_OPERANDS = {"left": {"$ref": "#/$defs/e"}, "right": {"$ref": "#/$defs/e"}}
_NODES: list[dict[str, Any]] = [
    {"type": "object", "properties": {"op": {"const": op}, **_OPERANDS}, "required": ["op", "left", "right"]}
    for op in "+-*/"
]
SCHEMA = {
    "type": "object",
    "properties": {"value": {"$ref": "#/$defs/e"}, "names": {"type": "array", "uniqueItems": True}},
    "required": ["value", "names"],
    "$defs": {"e": {"anyOf": [*_NODES, {"type": "number"}]}},
}
_TESTS = ["assert f(2) == 4", "for x in range(3):\n    assert f(x) == x * x"]


@dataclass(frozen=True)
class Case:
    task: Task
    problem: Problem
    gold: str
    form: str
    """The form in FORMS in which the task wants its answer."""


def verifier_cases(folder: Path) -> dict[str, Case]:
    """Return a case for each verifier, by its task's name and what is special to it."""
    connection = sqlite3.connect(folder / "town.sqlite")
    connection.execute("CREATE TABLE town (name TEXT, size INT)")
    connection.executemany("INSERT INTO town VALUES (?, ?)", [(f"town {number}", number) for number in range(100)])
    connection.commit()
    connection.close()
    query = "SELECT name FROM town WHERE size > 50"
    document = {"value": {"op": "+", "left": 1, "right": {"op": "/", "left": 2, "right": 3}}, "names": ["a"]}
    code = {"tests": _TESTS, "entry_point": "f"}
    square = FORMS["python"].format("def f(x):\n    return x * x")
    cases: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
        "arithmetic": ("tag", "<answer>42</answer>", {}, {"answer": "42"}),
        "countdown": ("tag", "<answer>(1 + 2) * 3</answer>", {}, {"numbers": [1, 2, 3], "target": 9}),
        "format-copy": ("tag", "<answer>1234</answer>", {}, {"answer": "1234"}),
        "gsm8k": ("bare", "2 * 21 = 42\n#### 42", {}, {"answer": "42"}),
        "jsonl exact": ("tag", "<answer>a b</answer>", {}, {"answer": "a b"}),
        "jsonl number": ("bare", "It is 42.", {"match": "number"}, {"answer": "42"}),
        "math": ("box", "\\boxed{\\frac{1}{2}}", {}, {"answer": "\\frac{1}{2}"}),
        "math set": ("box", "\\boxed{\\{1, \\sqrt{2}\\}}", {}, {"answer": "\\{1,\\sqrt{2}\\}"}),
        "math-hard": ("box", "\\boxed{x^2 + 2x}", {}, {"answer": "x^2+2x"}),
        "json-schema": ("json", FORMS["json"].format(json.dumps(document)), {}, {"schema": SCHEMA}),
        "sql-jsonl": ("sql", FORMS["sql"].format(query), {}, {"gold": query, "database": str(folder / "town.sqlite")}),
        "code-jsonl": ("python", square, {"seconds": 0.5, "memory_mb": 128}, code),
    }
    return {name: _case(name, *case) for name, case in cases.items()}


def _case(name: str, form: str, gold: str, options: dict[str, Any], values: dict[str, Any]) -> Case:
    task = make_task(name.partition(" ")[0], options)
    assert isinstance(task, RowScorer)
    return Case(task, task.bare_problem(Row(values, name)), gold, form)


UNITS = [
    *(
        "(",
        "1",
        "1,",
        "1/",
        "9**",
        "2^{",
        "\\frac{1}{",
        "\\sqrt{",
        "\\begin{pmatrix}1&",
        "x+",
        "1+1=2 ",
        "1=",
        "$ ",
        "\n",
    ),
    *(
        "<answer>",
        "</answer><answer>",
        "\\boxed{",
        "####\n",
        "```json\n",
        "```",
        "[",
        '{"value":',
        '"',
        '\\"',
        "[1,[2],",
    ),
    *("SELECT (", "'", "/*", "--\n", "def f(x):\n ", "f(", "not ", "\x00", "\ud800", "٣", "½", "dozen ", "1/2 of "),
]
TREE = {"op": "+", "left": 1, "right": "x"}
for _ in range(9):
    TREE = {"op": "*", "left": 1, "right": TREE}
TEXTS = {
    "tower of powers": "9^{9^{9^{9^{9}}}}",
    "tower of fractions": "\\frac{1}{1+" * 30 + "1" + "}" * 30,
    "huge factorial": "(10^9)!^{99}",
    "huge product": "\\cdot".join(["99999999^{64}"] * 20),
    "nested radicals": "\\sqrt{2+" * 30 + "2" + "}" * 30,
    "long exponent": "1e-999999999",
    "power of a sum": "(x+y+z+a+b+c)^{60}(x-y)^{60}",
    "million characters": "a" * 1_000_000,
    "million digits": "7" * 1_000_000,
    "million numbers": "1 " * 500_000,
    "bad leaf": json.dumps({"value": TREE, "names": []}),
    "two bad leaves": json.dumps({"value": {"op": "-", "left": TREE, "right": TREE}, "names": [TREE]}),
    "items that are alike": json.dumps({"value": 1, "names": [[number] for number in range(6_000)] + [[1]]}),
    "endless recursion": "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c) SELECT sum(i) FROM c",
    "doubling": "WITH RECURSIVE d(x) AS (SELECT 'ab' UNION ALL SELECT x || x FROM d) SELECT length(x) FROM d",
    "joins": "SELECT count(*) FROM town a, town b, town c, town d, town e, town f",
    "sort of joins": "SELECT a.name || b.name || c.name AS x FROM town a, town b, town c ORDER BY x",
    "sleeper": "import time\ntime.sleep(99)\ndef f(x): return x * x",
    "sleeping call": "import time\ndef f(x): time.sleep(99)",
    "endless loop": "def f(x):\n    while True: pass",
    "allocation": "def f(x): return len([0] * 10**10)",
    "slow allocation": "def f(x):\n    a = []\n    while True: a.append(bytes(10**6))",
    "output": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "forks": "import os\nwhile True: os.fork()",
    "threads": "import threading\nwhile True: threading.Thread(target=lambda: threading.Event().wait()).start()",
    "recursion": "def f(x): return f(x)",
    "huge power": "def f(x): return 9 ** 9 ** 9",
    "huge digits": "def f(x): return 10 ** 100_000",
    "catastrophic pattern": "import re\ndef f(x): return re.match('(a+)+$', 'a' * 99 + 'b')",
    "deep value": "def f(x):\n    a = []\n    for _ in range(10**5): a = [a]\n    return a",
    "exit": "import os\nos._exit(0)",
    "signal to all": "import os\nos.kill(-1, 9)",
    "many names": "def f(x): return {i: [i] * 99 for i in range(10**4)}",
}


def expensive_completions(case: Case) -> dict[str, str]:
    form = FORMS[case.form]
    repeated = {f"{unit!r} many times": unit * (SIZE // len(unit)) for unit in UNITS}
    found = {f"{name} in its form": form.format(text) for name, text in (repeated | TEXTS).items()}
    found |= {f"{name} before it": text + case.gold for name, text in repeated.items()}
    return found
