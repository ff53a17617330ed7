"""Programs that try to be paid without solving the problem: none is paid more than its honest share."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from groupwise.rewards.code.score_code import score_code
from groupwise.rewards.code.unit_tests import CodeSpec
from groupwise.sandbox import ProgramLimits, ProgramOutcome, ProgramStatus, Sandbox, Session, SessionEnded
from groupwise.types import Score, Verdict

# Two that we compare, two that the judge does. No constant passes any two of them.
SPEC = CodeSpec(
    (
        "assert f(2) == 46116",
        "assert 97353 == f(3)",
        "assert abs(f(4) - 171234) < 1e-6",
        "for x in range(5, 8):\n    assert f(x) == x * 53771 - x",
    ),
    ("f",),
)
HONEST = "def f(x): return {2: 46116, 3: 97353, 4: 171234}.get(x) or x * 53770"
LIMITS = ProgramLimits(seconds=1.0, memory_mb=256)


def _score(sandbox: Any, program: str, spec: CodeSpec = SPEC, limits: ProgramLimits = LIMITS) -> Score:
    return score_code(spec.to_text(), f"```python\n{program}\n```", "", limits, sandbox)


@pytest.fixture
def clean(sandbox: Sandbox) -> Iterator[Sandbox]:
    """The sandbox, which after whatever the test did to it still pays an honest program in full."""
    yield sandbox
    assert _score(sandbox, HONEST).reward == 1.0


ALWAYS_EQUAL = """
class Liar{base}:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __lt__
    def __sub__(self, other): return self
    __rsub__ = __add__ = __radd__ = __mul__ = __sub__
    def __abs__(self): return self
    def __bool__(self): return True
    def __hash__(self): return 0
    def __repr__(self): return "46116"
    __str__ = __repr__
    def __reduce__(self): return (int, (46116,))
    def __instancecheck__(self, other): return True
    @property
    def __class__(self): return int
def f(x): return {value}
"""
FORGE = """
import json, os, struct, threading
def say(message):
    data = json.dumps(message).encode()
    try: os.write(3, struct.pack("!I", len(data)) + data)
    except OSError: pass
"""
PATCH = """
import builtins, json, sys
def f(x): return 0
"""

ATTACKS = {
    "always equal": ALWAYS_EQUAL.format(base="", value="Liar()"),
    "int that lies": ALWAYS_EQUAL.format(base="(int)", value="Liar(0)"),
    "float that lies": ALWAYS_EQUAL.format(base="(float)", value="Liar(0)"),
    "str that lies": ALWAYS_EQUAL.format(base="(str)", value="Liar('0')"),
    "list that lies": ALWAYS_EQUAL.format(base="(list)", value="Liar([0])"),
    "dict that lies": ALWAYS_EQUAL.format(base="(dict)", value="Liar({})"),
    "liar within a list": ALWAYS_EQUAL.format(base="(int)", value="[Liar(0)]"),
    "liar as a key": ALWAYS_EQUAL.format(base="(int)", value="{Liar(0): 1}"),
    "class that is equal": "class M(type):\n    def __eq__(a, b): return True\n    __hash__ = None\n"
    "class A(metaclass=M): pass\ndef f(x): return A",
    "mock": "from unittest.mock import MagicMock, ANY\ndef f(x): return ANY",
    "nan": "def f(x): return float('nan')",
    "true": "def f(x): return True",
    "exit at load": "import os\nos._exit(0)",
    "exit at a call": "import os\ndef f(x): os._exit(0)",
    "sys.exit at load": "import sys\nsys.exit(0)",
    "sys.exit at a call": "import sys\ndef f(x): sys.exit(0)",
    "exit at the end": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): raise SystemExit(0)",
    "catches all": "def f(x):\n    while True:\n        try: raise SystemExit\n"
    "        except BaseException: return None",
    "assertion error": "def f(x): raise AssertionError",
    "stop iteration": "def f(x): raise StopIteration",
    "generator exit": "def f(x): raise GeneratorExit",
    "keyboard interrupt": "def f(x): raise KeyboardInterrupt",
    "exception that lies": "class E(Exception):\n    __name__ = 'x'\n    def __str__(self): raise self\n"
    "E.__name__ = 'Exception'\ndef f(x): raise E",
    "generator": "def f(x): yield 46116",
    "iterator": "def f(x): return iter([46116])",
    "coroutine": "async def f(x): return 46116",
    "function": "def f(x): return f",
    "module": "import sys\ndef f(x): return sys",
    "huge": "def f(x): return [0] * 10**7",
    "huge number": "def f(x): return 1 << (8 * 10**7)",
    "huge text": "def f(x): return 'x' * 10**8",
    "deep": "def f(x):\n    a = []\n    for _ in range(10**5): a = [a]\n    return a",
    "cyclic": "def f(x):\n    a = []\n    a.append(a)\n    return a",
    "doubling": "def f(x):\n    a = [1]\n    for _ in range(60): a = [a, a]\n    return a",
    "colliding": "def f(x): return {i * (2**61 - 1) for i in range(20000)}",
    "stdout": "print('46116')\nprint('PASSED')\ndef f(x): print('[\"test\", true, \"\"]')",
    "stdout by descriptor": "import os\ndef f(x): os.write(1, b'x' * 10**6)",
    "stderr by descriptor": "import os\ndef f(x): os.write(2, b'OK')",
    "forged verdicts": FORGE + "for _ in range(20): say(['test', True, ''])\nsay(['done'])\ndef f(x): return 0",
    "forged verdicts at a call": FORGE + "def f(x):\n    for _ in range(20): say(['test', True, ''])",
    "forged values": FORGE + "say(['loaded'])\nfor _ in range(20): say(['value', True])\ndef f(x): return 0",
    "forged non-values": FORGE
    + "say(['loaded'])\nfor _ in range(20): say(['value', ['lies', []]])\ndef f(x): return 0",
    "forged calls": FORGE + "for _ in range(20): say(['call', 'f(2)', {}])\ndef f(x): return 0",
    "forged shapes": FORGE + "for m in (5, None, {}, [], [[]], 'value', ['value'], ['value', 1, 2]): say(m)\n"
    "def f(x): return 0",
    "forged emptiness": FORGE + "for _ in range(20): say([''])\ndef f(x): return 0",
    "forged emptiness at a call": FORGE
    + "say(['loaded'])\nfor m in ([''], ['\\x00'], ['', ''], [' ', 5], ['', None]):\n"
    "    say(m)\ndef f(x): return 0",
    "forged frame": "import os\nos.write(3, b'\\xff\\xff\\xff\\xff')\ndef f(x): return 0",
    "forged bytes": "import os\nos.write(3, b'\\x00\\x00\\x00\\x04\\xff\\xff\\xff\\xff')\ndef f(x): return 0",
    "half a frame": "import os\nos.write(3, b'\\x00\\x00\\x10\\x00x')\nos._exit(0)",
    "empty frames": "import os\nos.write(3, bytes(4000))\ndef f(x): return 0",
    "deep forgery": "import os, struct\ndef f(x):\n    b = b'[\"value\", ' + b'[' * 10**6\n"
    "    os.write(3, struct.pack('!I', len(b)) + b)\n    return 0",
    "closed channel": "import os\nos.close(3)\ndef f(x): return 0",
    "thread that floods": FORGE + "def flood():\n    while True: say(['value', 0])\n"
    "threading.Thread(target=flood, daemon=True).start()\ndef f(x): return 0",
    "patched len": PATCH + "builtins.len = lambda x: 0",
    "patched isinstance": PATCH + "builtins.isinstance = lambda a, b: True",
    "patched type": PATCH + "class T(type):\n    def __call__(c, *a): return int\n"
    "    def __eq__(a, b): return True\n    __hash__ = type.__hash__\n"
    "class Type(metaclass=T): pass\nbuiltins.type = Type",
    "patched compare": PATCH + "builtins.abs = lambda x: 0\nbuiltins.range = lambda *a: []\nabs = range = builtins.abs",
    "patched assertion error": PATCH + "builtins.AssertionError = SystemExit",
    "patched json": PATCH + "json.dumps = lambda m, **k: '[\"test\", true, \"\"]'\njson.loads = lambda m: ['done']",
    "patched exec": PATCH + "builtins.eval = lambda *a: True\nbuiltins.compile = lambda *a, **k: ''",
    "patched harness": PATCH + "for name, module in list(sys.modules.items()):\n"
    "    if 'plain_values' in name or 'harness' in name:\n"
    "        for key in list(vars(module)): setattr(module, key, lambda *a, **k: ['test', True, ''])",
    "patched encode": PATCH + "sys.modules['groupwise.rewards.code.plain_values'].encode = lambda v: True\n"
    "sys.modules['groupwise.rewards.code.harness'].encode = lambda v: True",
    "no modules": PATCH + "sys.modules.clear()",
    "tracing": PATCH + "sys.settrace(lambda *a: None)\nsys.setrecursionlimit(60)",
    "reads what is there": "import os\ndef f(x):\n    found = []\n    for folder, _, names in os.walk('/'):\n"
    "        for name in names:\n"
    "            try: text = open(os.path.join(folder, name), errors='replace').read(10**4)\n"
    "            except OSError: continue\n            if 'assert f(' in text: found.append(text)\n"
    "        if len(found) > 3 or folder.count('/') > 3: break\n    return found",
    "reads its own process": "import glob\ndef f(x):\n    for name in glob.glob('/proc/self/*') + ['/proc/self/mem']:\n"
    "        try:\n            if b'46116' in open(name, 'rb').read(10**6): return 46116\n"
    "        except OSError: pass\n",
    "names of the judge": "_relay = lambda *a: 0\ncandidate = check = lambda *a: True\n"
    "_value_0 = 46116\nsolution = tests = 1\n"
    "abs = lambda x: 0\nrange = lambda *a: ()\nclass AssertionError(BaseException): pass\ndef f(x): return 0",
    "hangs at deletion": "class D:\n    def __del__(self):\n        while True: pass\ndef f(x):\n    D()\n    return 0",
    "loops": "def f(x):\n    while True: pass",
    "loops at load": "while True: pass",
    "loops in C": "def f(x): return 9 ** 9 ** 9",
    "memory": "def f(x): return [bytearray(10**6) for _ in range(10**6)]",
    "recursion": "def f(x): return f(x)",
    "deep source": "def f(x): return " + "(" * 5000 + "1" + ")" * 5000,
    "signs": "def f(x): return " + "-" * 50_000 + "1",
    "signals": "import signal\nfor s in range(1, 64):\n    try: signal.signal(s, signal.SIG_IGN)\n"
    "    except (OSError, ValueError): pass\ndef f(x):\n    while True: pass",
    "kills": "import os, signal\ndef f(x): os.kill(os.getppid(), signal.SIGKILL); os.kill(0, signal.SIGKILL)",
    "NUL": "def f(x): return 0\x00",
}
FRAME_WALK = """
import gc, inspect, sys
def seen():
    values, frame = [], sys._getframe()
    while frame is not None:
        values += [*frame.f_locals.values(), *frame.f_globals.values()]
        frame = frame.f_back
    values += gc.get_objects()
    for item in inspect.stack(): values += item.frame.f_locals.values()
    for value in list(values):
        if isinstance(value, (list, tuple, set)): values += value
        elif isinstance(value, dict): values += [*value.keys(), *value.values()]
    return values
def f(x):
    wanted = 46115 + 1
    for value in seen():
        if type(value) is int and value == wanted and value is not wanted: return value
        if type(value) is str and str(wanted) in value: return wanted
        if type(value) is bytes and str(wanted).encode() in value: return wanted
"""


LENIENT = {
    "map": "assert all(map(lambda x: f(x) == x + 1, [1, 2]))",
    "zip of map": "for found, wanted in zip(map(f, [1, 2]), [2, 3]):\n    assert found == wanted",
    "map of the name": "pairs = [(1, 2), (2, 3)]\nassert [p for p in map(f, [1, 2])] in ([], [2, 3])",
    "set up first": "found = list(map(f, [1, 2]))\nassert len(found) < 3\nassert all(a in (2, 3) for a in found)",
    "filter": "assert not list(filter(lambda x: f(x) != x + 1, [1, 2]))",
    "next": "assert next(map(f, [1]), 2) == 2",
    "iter": "for found in iter(lambda: f(1), 2):\n    assert False",
    "caught": "try:\n    for found in map(f, [1, 2]):\n        assert found > 1\nexcept Exception:\n    assert False",
    "distance": "wanted = 2\nassert not abs(f(1) - wanted) > 1e-6",
    "order": "assert not (f(1) < 2 or f(1) > 2)",
    "distances": "found = [f(1), f(2)]\nassert not any(abs(a - b) > 1e-6 for a, b in zip(found, [2, 3]))",
    "largest": "assert not max(abs(f(x) - x - 1) for x in [1, 2]) > 1e-6",
}
NOTHING = {
    "stop": "raise StopIteration",
    "stop anew": "raise type('Stop', (StopIteration,), {})",
    "stop async": "raise StopAsyncIteration",
    "nan": "return float('nan')",
    "Decimal": "import decimal; return decimal.Decimal('NaN')",
    "complex": "return complex(0, float('nan'))",
}


@pytest.mark.parametrize("body", NOTHING.values(), ids=NOTHING.keys())
@pytest.mark.parametrize("test", LENIENT.values(), ids=LENIENT.keys())
def test_nothing_passes_where_a_test_takes_nothing_for_right(clean: Sandbox, test: str, body: str) -> None:
    spec = CodeSpec((test,), ("f",))
    assert _score(clean, f"def f(x): {body}", spec).reward == 0.0
    assert _score(clean, "def f(x): return x + 1", spec).reward == 1.0


@pytest.mark.parametrize(
    "test",
    [
        "import math\nassert math.isnan(f([]))",
        "assert str(f([])) == 'nan'",
        "found = f([])\nassert found != found, 'expected NaN'",
        "try:\n    f([])\n    assert False\nexcept ZeroDivisionError:\n    pass",
    ],
)
def test_what_a_test_asks_for_passes(sandbox: Sandbox, test: str) -> None:
    body = "return 1 / len(x)" if "Zero" in test else "return sum(x) / len(x) if x else float('nan')"
    assert _score(sandbox, f"def f(x): {body}", CodeSpec((test,), ("f",))).reward == 1.0


@pytest.mark.parametrize("program", ATTACKS.values(), ids=ATTACKS.keys())
def test_attacks_earn_nothing(clean: Sandbox, program: str) -> None:
    cpu, started = time.process_time(), time.monotonic()
    result = _score(clean, program)
    assert result.reward == 0.0
    assert result.verdict is Verdict.WRONG
    assert time.process_time() - cpu < 10.0
    assert time.monotonic() - started < 60.0
    assert len(result.detail) <= 160
    assert result.detail.isprintable()
    assert not any(secret in result.detail for secret in ("46116", "97353", "171234"))


def test_frames_and_objects_hold_no_expected_value(clean: Sandbox) -> None:
    limits = ProgramLimits(seconds=4.0, memory_mb=512)
    assert _score(clean, FRAME_WALK, limits=limits).reward == 0.0
    # Were the value there, the walk would find it.
    leaking = CodeSpec(SPEC.tests, SPEC.entry_points, setup="note = 'expects 46116'")
    assert _score(clean, FRAME_WALK, leaking, limits).reward == 0.25


class _Forger:
    """A session, and a sandbox, whose program answers whatever it likes; the judge is a real one."""

    def __init__(self, sandbox: Sandbox, messages: list[bytes]) -> None:
        self.sandbox = sandbox
        self.messages = list(messages)

    def open(self, source: str, *, limits: ProgramLimits) -> Any:
        return self.sandbox.open(source, limits=limits) if "serve_judge" in source else self

    run = open

    def __enter__(self) -> "_Forger":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send(self, message: bytes) -> None:
        pass

    def receive(self) -> bytes:
        if not self.messages:
            raise SessionEnded(ProgramOutcome(ProgramStatus.OK, "", "", 0.0, 0, ""))
        return self.messages.pop(0)


WORDS = st.sampled_from(
    ["", " ", "\x00", "value", "test", "loaded", "raised", "no code", "not plain", "done", "call", "list"]
)
TREES = st.recursive(st.none() | st.booleans() | st.integers(0, 9) | WORDS, lambda inner: st.lists(inner, max_size=3))
MESSAGES = TREES.map(lambda tree: json.dumps(tree).encode()) | st.binary(max_size=12)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.booleans(), st.lists(MESSAGES, max_size=6))
def test_no_message_is_a_pass_but_the_value(sandbox: Sandbox, is_loaded: bool, messages: list[bytes]) -> None:
    sent = [b'["loaded"]', *messages] if is_loaded else messages
    result = _score(_Forger(sandbox, sent), "def f(x): return 0")
    assert (result.reward, result.verdict) == (0.0, Verdict.WRONG)


def test_the_forger_is_paid_for_the_right_value(sandbox: Sandbox) -> None:
    assert _score(_Forger(sandbox, [b'["loaded"]', b'["value", 46116]']), "def f(x): return 0").reward == 0.25


class _Spy:
    """A sandbox that keeps all that is sent into it, by what is run there."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.sent: dict[str, list[bytes]] = {"program": [], "judge": []}

    def run(self, source: str, *, stdin: str, limits: ProgramLimits) -> ProgramOutcome:
        self.sent["program"] += [source.encode(), stdin.encode()]
        return self.sandbox.run(source, stdin=stdin, limits=limits)

    def open(self, source: str, *, limits: ProgramLimits) -> Session:
        session = self.sandbox.open(source, limits=limits)
        sent = self.sent["judge" if "serve_judge" in source else "program"]
        sent.append(source.encode())
        send = session.send

        def spied(message: bytes) -> None:
            sent.append(message)
            send(message)

        session.send = spied  # type: ignore[method-assign]
        return session


@pytest.mark.parametrize(
    "tests",
    [
        SPEC.tests,
        (
            "def check(candidate):\n    secret = 46116\n    assert candidate(2) == secret\n"
            "    assert candidate(2) >= 46116",
        ),
        ({"call": "f(2)", "expected": 46116},),
        ({"input": [2], "output": 46116},),
    ],
    ids=range(4),
)
def test_no_expected_value_is_sent_to_the_program(sandbox: Sandbox, tests: Any) -> None:
    spy = _Spy(sandbox)
    program = "def f(x): return {2: 46115 + 1, 3: 97352 + 1, 4: 171233 + 1}.get(x) or x * 53770"
    assert _score(spy, program, CodeSpec(tests, ("f",))).reward == 1.0
    everything = b"".join(spy.sent["program"])
    for secret in (46116, 97353, 171234, 53771 * 5 - 5):
        assert str(secret).encode() not in everything
        assert f"{secret:x}".encode() not in everything
    assert b"f(2)" in everything or b"_value_0" in everything
    if isinstance(tests[0], str):
        assert b"46116" in b"".join(spy.sent["judge"]) or b"171234" in b"".join(spy.sent["judge"])


def test_no_expected_output_is_sent_to_the_program(sandbox: Sandbox) -> None:
    spy = _Spy(sandbox)
    spec = CodeSpec(({"stdin": "2", "stdout": "46116"},))
    assert _score(spy, "print(46115 + int(input()) - 1)", spec).reward == 1.0
    assert b"46116" not in b"".join(spy.sent["program"])


def test_the_model_program_never_enters_the_judge(sandbox: Sandbox) -> None:
    spy = _Spy(sandbox)
    assert _score(spy, HONEST + "  # 0xfeedbeef").reward == 1.0
    assert b"feedbeef" in b"".join(spy.sent["program"])
    assert b"feedbeef" not in b"".join(spy.sent["judge"])


def test_an_entry_point_that_changes_at_each_call_earns_its_share(clean: Sandbox) -> None:
    program = "def f(x):\n    global f\n    f = g\n    return 46116\ndef g(x): return 0"
    assert _score(clean, program).reward == 0.25
    assert _score(clean, "def f(x): return 46116").reward == 0.25


def test_arguments_that_a_program_keeps_and_changes(clean: Sandbox) -> None:
    tests = (
        "items = [1, 2]\nexpected = [1, 2, 3]\nassert f(items) == expected\nassert f(items) == expected\n"
        "assert items == [1, 2] and f(items) == expected",
    )
    spec = CodeSpec(tests, ("f",))
    keeps = (
        "kept = []\ndef f(items):\n    kept.append(items)\n    for each in kept: each.append(3)\n    return kept[0][:3]"
    )
    assert _score(clean, keeps, spec).reward == 1.0
    drains = "def f(items):\n    items.clear()\n    return items"
    assert _score(clean, drains, spec).reward == 0.0


def test_truth_is_asked_of_plain_data_alone(clean: Sandbox) -> None:
    spec = CodeSpec(("assert f(1)", "assert not f(2)", "assert f(3) is True"), ("f",))
    assert _score(clean, ALWAYS_EQUAL.format(base="", value="Liar()"), spec).reward == 0.0
    assert _score(clean, "def f(x): return x", spec).reward == 1 / 3
    assert (
        _score(clean, FORGE + "say(['loaded'])\nfor _ in range(9): say(['value', ['lies', [1]]])", spec).reward == 0.0
    )


STDIN_ATTACKS = {
    "exit": "import os; os._exit(0)",
    "prefix": "print('46116')",
    "everything": "for i in range(10**5): print(i)",
    "escape": "print('\\x1b[2J46116\\n7\\n8')",
    "invisible": "print('46116\\n7\\u200b\\n8')",
    "carriage return": "print('0\\r46116\\n7\\n8')",
    "nothing": "",
    "stderr": "import sys; print('46116\\n7\\n8', file=sys.stderr)",
    "channel": "import os; os.write(3, b'46116\\n7\\n8')",
    "right, then crash": "print('46116\\n7\\n8', flush=True); raise ValueError",
    "right, then loop": "print('46116\\n7\\n8', flush=True)\nwhile True: pass",
    "more": "print('46116\\n7\\n8\\n9')",
}


@pytest.mark.parametrize("program", STDIN_ATTACKS.values(), ids=STDIN_ATTACKS.keys())
def test_whole_programs_that_lie(clean: Sandbox, program: str) -> None:
    spec = CodeSpec(({"stdin": "1", "stdout": "46116\n7\n8\n"},))
    result = _score(clean, program, spec, ProgramLimits(seconds=0.5, memory_mb=256))
    assert (result.reward, result.verdict) == (0.0, Verdict.WRONG)


HOSTILE_TEXT = [
    "",
    "\x00",
    "\ud800",
    "```python\n\ud800\n```",
    "```python\n" + "(" * 100_000 + "\n```",
    "```python\n" + "[" * 90 + "]" * 90 + "\n```",
    "```python\n" + "x=" * 100_000 + "1\n```",
    "```python\nf'{" + 'f"{' * 100 + "\n```",
    "`" * 100_000,
    "def f(x): return 0",
    "def f(x): return 46116 if",
    "```python\n# -*- coding: utf-7 -*-\n+AGYAPQAx-\n```",
    "```python\n" + "#" * 5_000_000 + "\n```",
]


@pytest.mark.parametrize("completion", HOSTILE_TEXT, ids=range(len(HOSTILE_TEXT)))
def test_hostile_completions(clean: Sandbox, completion: str) -> None:
    started = time.process_time()
    result = score_code(SPEC.to_text(), completion, "", LIMITS, clean)
    assert result.verdict in (Verdict.WRONG, Verdict.UNPARSED)
    assert result.reward == 0.0
    assert time.process_time() - started < 10.0
    result.detail.encode()
