"""Which text of a completion is the program."""

import time

import pytest

from groupwise.rewards.code.score_code import find_program

DEFINED = "def f(x):\n    return x"
PREAMBLE = 'from math import pi\n\ndef f(x):\n    """Doc."""\n'


def _fence(code: str, language: str = "python") -> str:
    return f"```{language}\n{code}\n```"


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (_fence(DEFINED), DEFINED),
        (f"Some text.\n{_fence(DEFINED)}\nDone.", DEFINED),
        (_fence(DEFINED, ""), DEFINED),
        (_fence(DEFINED, "Python"), DEFINED),
        (_fence(DEFINED, "py title=x"), DEFINED),
        (_fence("def f(): return 1") + "\n" + _fence(DEFINED), DEFINED),
        (_fence(DEFINED) + "\nUse it so:\n" + _fence("f(5)"), DEFINED),
        (_fence(DEFINED) + "\nIt prints\n" + _fence("5", "text"), DEFINED),
        (_fence(DEFINED, "") + "\n" + _fence("print(f(5))"), DEFINED),
        (_fence("first()") + _fence("second()"), "first()\n```" + "```python\nsecond()"),
        (_fence("g = 1") + "\n" + _fence("h = 2"), "h = 2"),
        (_fence("g = 1") + "\n" + _fence("h = 2", "text"), "g = 1"),
        (_fence("f = lambda x: x") + "\n" + _fence("g = 2"), "f = lambda x: x"),
        (_fence("f: object = len") + "\n" + _fence("g = 2"), "f: object = len"),
        (_fence("class f:\n    pass") + "\n" + _fence("g = 2"), "class f:\n    pass"),
        (_fence("def fg(): pass") + "\n" + _fence("g = 2"), "g = 2"),
        (f"```python\n{DEFINED}", DEFINED),
        (f"~~~~python\n{DEFINED}\n~~~\n~~~~", DEFINED + "\n~~~"),
        ("1. So:\n   ```python\n   def f(x):\n       return x\n   ```", DEFINED),
        ("```python\r\ndef f(x):\r\n    return x\r\n```", "def f(x):\r\n    return x\r"),
        ("```python\nf = 'a\x0cb\u2028c'\n```", "f = 'a\x0cb\u2028c'"),
        (DEFINED, DEFINED),
        (f"import os\n{DEFINED}", f"import os\n{DEFINED}"),
    ],
)
def test_programs(completion: str, expected: str) -> None:
    program = find_program(completion, "f")
    assert program is not None
    assert program.sources == (expected,)
    assert program.is_fenced == ("```" in completion or "~~~" in completion)


@pytest.mark.parametrize(
    "completion", ["", "  \n", "The answer is 5.", "f(5)", "    return x", "inline ```f = 1``` code"]
)
def test_no_program(completion: str) -> None:
    assert find_program(completion, "f") is None


def test_what_goes_on_where_the_prompt_stops() -> None:
    program = find_program("    return x\n", "f", PREAMBLE)
    assert program is not None
    assert program.sources[0] == f"{PREAMBLE}\n    return x\n"
    assert not program.is_fenced
    assert find_program("return x", "f", PREAMBLE) is None
    fenced = find_program(_fence("    return x"), "f", PREAMBLE)
    assert fenced is not None
    assert fenced.sources == (f"{PREAMBLE}\n    return x", "    return x")


def test_methods_and_whole_programs() -> None:
    text = _fence("class Solution:\n    pass") + "\n" + _fence("print(1)")
    solution = find_program(text, "Solution().add")
    assert solution is not None
    assert solution.sources == ("class Solution:\n    pass",)
    whole = find_program(text)
    assert whole is not None
    assert whole.sources == ("print(1)",)
    bare = find_program("print(1)")
    assert bare is not None
    assert not bare.is_fenced


@pytest.mark.parametrize(
    "completion",
    [
        "`" * 200_000,
        "```" + "a" * 200_000 + "`",
        ("```python\n" * 20_000),
        ("```" + " " * 1000) * 200,
        "f" * 200_000,
        ("f" + " " * 1000) * 200,
        ("f:" + ":" * 1000 + "\n") * 200,
        "def " * 50_000,
        "async\t" * 40_000,
        "\n" * 200_000,
    ],
    ids=range(10),
)
def test_time_is_linear(completion: str) -> None:
    started = time.process_time()
    find_program(completion, "f", PREAMBLE)
    assert time.process_time() - started < 10.0
