"""How a problem's tests are read: what is compared by us, what the judge runs, what is refused."""

import json
import warnings
from typing import Any

import pytest

from groupwise.rewards.code.unit_tests import (
    BadTests,
    CallTest,
    CodeSpec,
    GradingPlan,
    StdinTest,
    defines,
    infer_entry_points,
    plan_tests,
    read_plan,
)


def _plan(*tests: Any, entry_point: str = "f", **fields: str) -> GradingPlan:
    return plan_tests(CodeSpec(tests, (entry_point,) if entry_point else (), **fields))


def _judged(*tests: Any, **fields: str) -> list[tuple[str, bool]]:
    plan = _plan(*tests, **fields)
    units = [unit for block in _script(plan)[1] for unit in block]
    assert plan.num_judged == sum(is_test for _, is_test in units) > 0
    assert plan.num_tests == len(plan.calls) + plan.num_judged
    return units


def _script(plan: GradingPlan) -> tuple[dict[str, str], list[list[tuple[str, bool]]]]:
    """Return the bindings and the blocks of the judge's message."""
    kind, _setup, _imports, bindings, blocks = json.loads(plan.judge)
    assert kind == "run"
    return bindings, [[(source, is_test) for source, is_test in block] for block in blocks]


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("assert f(1, 2) == 3", CallTest("f(1, 2)", "equal", 3)),
        ("assert f(1) == -2.5, 'message'", CallTest("f(1)", "equal", -2.5)),
        ("assert [1, (2, {3}), {'a': None}] == f(x=1)", CallTest("f(x=1)", "equal", [1, (2, {3}), {"a": None}])),
        ("assert f() == set()", CallTest("f()", "equal", set())),
        ("assert f(1) is None", CallTest("f(1)", "is", None)),
        ("assert True is f(1)", CallTest("f(1)", "is", True)),
        ("assert f('a')", CallTest("f('a')", "true")),
        ("assert not f('a')", CallTest("f('a')", "false")),
        ("assert f(*[1], **{'b': 2}) == 1", CallTest("f(*[1], **{'b': 2})", "equal", 1)),
        ("assert f([Pair(5, 24)], 4) == 3", CallTest("f([Pair(5, 24)], 4)", "equal", 3)),
        ("assert f(lambda x: x + 1, [x for x in range(3)]) == 3", None),
        ("assert f(f(1)) == 3", CallTest("f(f(1))", "equal", 3)),
        ("def check(candidate):\n    assert candidate(1) == 2", CallTest("f(1)", "equal", 2)),
        ("def check(candidate):\n    assert candidate(candidate(1)) == 2", CallTest("f(f(1))", "equal", 2)),
        ("def test_one():\n    assert f(1) == 2", CallTest("f(1)", "equal", 2)),
        ({"call": " f(1) ", "expected": [1]}, CallTest("f(1)", "equal", [1], is_json=True)),
        ({"input": [1, [2]], "output": 3}, CallTest("f(*_value_0)", "equal", 3, {"_value_0": [1, [2]]}, is_json=True)),
        ({"input": {"x": 1}, "output": 3}, CallTest("f(**_value_0)", "equal", 3, {"_value_0": {"x": 1}}, is_json=True)),
    ],
)
def test_calls_that_we_compare(test: Any, expected: CallTest | None) -> None:
    plan = _plan(test)
    assert plan.num_judged == 0
    assert plan.num_tests == 1
    if expected is not None:
        assert plan.calls == (expected,)


def test_no_expected_value_is_in_what_the_program_is_given() -> None:
    plan = _plan("assert f(1) == 77777", "assert f(2) == [77777]", {"call": "f(3)", "expected": 77777})
    assert all("77777" not in call.text + str(call.values) for call in plan.calls)
    units = _judged(
        "y = 77777\nassert f(3) == y + 1\nassert abs(f(4, y) - 77778) < 1\nassert f(y)[0].startswith('77779')"
    )
    texts = [source.partition("_relay(")[2].partition(", {")[0] for source, _ in units[1:]]
    assert texts == ["'f(3)'", "'f(4, _value_0)'", "'f(_value_0)'"]


@pytest.mark.parametrize(
    ("test", "relayed"),
    [
        ("assert abs(f(1) - 2) < 1e-6", "assert abs(_relay('f(1)', {}) - 2) < 1e-06"),
        ("assert f(1) == 2 + 3", "assert _relay('f(1)', {}) == 2 + 3"),
        ("assert f(1) != 2", "assert _relay('f(1)', {}) != 2"),
        ("assert f(1) == 2 == f(2)", "assert _relay('f(1)', {}) == 2 == _relay('f(2)', {})"),
        ("assert f(1) == g(1)", "assert _relay('f(1)', {}) == g(1)"),
        ("assert f(f(1)) + 0 == 1", "assert _relay('f(f(1))', {}) + 0 == 1"),
        ("assert f(*[1], k=2) > 1", "assert _relay('f(*[1], k=2)', {}) > 1"),
        ("assert sorted(f([3, 1])) == [1, 3]", "assert sorted(_relay('f([3, 1])', {})) == [1, 3]"),
        ("assert f(1)[0] == 1", "assert _relay('f(1)', {})[0] == 1"),
        ("assert f(1).count(2) == 1", "assert _relay('f(1)', {}).count(2) == 1"),
        ("assert f(math.pi) == 3", "assert _relay('f(_value_0)', {'_value_0': math.pi}) == 3"),
        ("assert list(map(f, [1])) == [1]", "assert list(map(f, [1])) == [1]"),
    ],
)
def test_what_the_judge_runs(test: str, relayed: str) -> None:
    assert _judged(test) == [(relayed, True)]


def test_arguments_of_the_test_go_as_values_and_others_as_text() -> None:
    source = """
import copy
y = [1]
for x in range(3):
    assert f(x, Pair(1), *y, k=copy.deepcopy(y), **{'z': x}) == helper(x)
"""
    units = _judged(source, helpers="def helper(x): return x\ndef f(x): pass")
    assert units[:2] == [("import copy", False), ("y = [1]", False)]
    call = "_relay('f(_value_0, Pair(1), *_value_1, k=_value_2, **_value_3)', "
    values = "{'_value_0': x, '_value_1': y, '_value_2': copy.deepcopy(y), '_value_3': {'z': x}})"
    assert units[2] == (f"for x in range(3):\n    assert {call}{values} == helper(x)", True)


def test_helpers_are_not_the_programs_and_setup_is() -> None:
    (unit,) = _judged("assert f(encode('a')) == 'a'", helpers="def encode(s): return s")
    assert unit == ("assert _relay('f(_value_0)', {'_value_0': encode('a')}) == 'a'", True)
    plan = _plan("assert f(root) == 1", setup="root = Node(1)")
    assert plan.calls == (CallTest("f(root)", "equal", 1),)


def test_statements_and_what_counts() -> None:
    source = '''
METADATA = {}
def close(a, b):
    assert abs(a - b) < 1e-6
def check(candidate):
    """Doc."""
    print
    x = candidate(1)
    assert candidate(1) == 2
    assert True, "shown when it fails"
    assert (candidate(1) == 2, "always true")
    assert candidate(1) == candidate(1)
    assert f(2) == candidate(2)
    close(candidate(1), 2)
    if candidate(3) != 4:
        raise ValueError
    with open("x") as file:
        assert candidate(x) == 1
    assert x == 5
check(f)
'''
    plan = _plan(source)
    assert plan.calls == (CallTest("f(1)", "equal", 2),)
    top, block = _script(plan)[1]
    assert [is_test for _, is_test in top] == [False, False]
    assert [is_test for _, is_test in block] == [False, True, True, True, True]
    assert plan.num_tests == 5


def test_a_function_that_returns_is_one_test() -> None:
    source = (
        "def check(candidate):\n    for x in [1]:\n        if candidate(x) == 1:\n            return\n    assert False"
    )
    plan = _plan(source)
    assert plan.num_tests == 1
    bindings, blocks = _script(plan)
    assert bindings == {"f": "f", "candidate": "f"}
    assert blocks[1][1] == ("check(candidate)", True)


def test_entry_points_that_are_methods() -> None:
    plan = _plan("def check(candidate):\n    assert candidate(a=1) == 2", entry_point="Solution().add")
    assert plan.calls == (CallTest("Solution().add(a=1)", "equal", 2),)
    assert _plan("assert Solution().add(1) == 2", entry_point="Solution().add").calls[0].text == "Solution().add(1)"
    assert _judged("assert Solution().add(1) > 2", entry_point="Solution().add")[0][0].startswith("assert _relay(")


def test_odd_escapes_are_read_in_silence() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _plan(r"assert f('\d') == 1").calls[0].text == r"f('\\d')"


def test_stdin() -> None:
    plan = _plan({"stdin": "1\n", "stdout": "2\n"}, {"input": "3", "output": "4"}, entry_point="")
    assert plan.stdin == (StdinTest("1\n", "2\n"), StdinTest("3", "4"))
    assert plan.num_tests == 2


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ([], "no test"),
        (["x = 1"], "no test"),
        (["assert True"], "no test"),
        (["assert f(1) == f(1)"], "no test"),
        (["assert f(1) =="], "tests: not Python"),
        (["assert f(1) == '\x00'"], "not Python"),
        ([5], "test 1 is 5"),
        ([{"call": "f("}], "has the keys call: expected call and expected"),
        ([{"call": "f(", "expected": 1}], "test 1: 'call': not Python"),
        ([{"call": 5, "expected": 1}], "'call' is 5"),
        ([{"input": "a", "output": 1}], "'input' is 'a', expected a list"),
        ([{"stdin": "a", "stdout": 1}], "'stdin' and 'stdout' must be strings"),
        ([{"stdin": "a", "stdout": "b"}, "assert f(1) == 2"], "use one kind"),
        ([{}], r"has the keys \(none\)"),
    ],
)
def test_tests_that_are_refused(tests: list[Any], message: str) -> None:
    with pytest.raises(BadTests, match=message):
        _plan(*tests)


@pytest.mark.parametrize("name", ["f()", "f g", "f(1)", "1f", "os.system('x').f", "f;g", ".f", "f."])
def test_entry_points_that_are_refused(name: str) -> None:
    with pytest.raises(BadTests, match="entry_point"):
        _plan("assert f(1) == 2", entry_point=name)
    with pytest.raises(BadTests, match="set 'entry_point'"):
        _plan("def check(candidate):\n    assert candidate(1) == 2", entry_point="")


def test_entry_points_are_inferred() -> None:
    assert infer_entry_points(["assert f(1) == 2", "assert abs(f([Pair(1)])) == len([1])"]) == ("f",)
    assert infer_entry_points(["assert sum(1, 2) == 2"], solution="def sum(a, b): pass") == ("sum",)
    assert infer_entry_points(["assert sum(f(1)) == 2"], solution="def f(a): pass\ndef g(): pass") == ("f",)
    assert infer_entry_points(["def check(c):\n    assert c(1) == 2\ncheck(f)"]) == ("f",)
    assert infer_entry_points([{"call": "f(1)", "expected": 1}]) == ()
    assert infer_entry_points(["g = 1\nassert f(g) == h(1)"], helpers="def h(x): pass") == ("f",)
    with pytest.raises(BadTests, match="the tests call f, Counter: name the solution's function in 'entry_point'"):
        infer_entry_points(["assert f(1) == Counter([1])"])


def test_definitions() -> None:
    assert defines("def f(x):\n    pass", "f")
    assert defines("class Solution:\n    pass", "Solution().add")
    assert not defines("def f(x):\n    pass", "g")
    assert not defines("Write f(x) as you like.", "f")


def test_the_text_of_a_problem_holds_it_all() -> None:
    spec = CodeSpec(("assert f(1) == '\\ud800'", {"call": "f(1)", "expected": None}), ("f",), "p = 1", "h = 1", "s = 1")
    again, plan = read_plan(spec.to_text())
    assert again == spec
    assert plan == plan_tests(spec)
    assert plan.calls[1].expected == "\ud800"
    assert json.loads(CodeSpec(("assert f() == 1",)).to_text()) == {"tests": ["assert f() == 1"]}
