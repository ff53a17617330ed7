"""Tests of a programming problem, planned: calls with values to compare, a script for the judge, programs with stdin.

A test is Python text (assert statements, `def check(candidate)`, `def test_…()`), an object {"call", "expected"},
{"input", "output"} or {"stdin", "stdout"}. `plan_tests` reads them once and sorts them:

- `assert CALL == LITERAL` (either way round; `is` with None, True and False; `assert CALL`, `assert not CALL`), where
  CALL calls an entry point, is a `CallTest`: the call's text goes to the program, the literal stays with us.
- Any other assertion goes to the judge, where calls of an entry point become calls of `_relay`. Arguments that use none
  of the test's own names go as text, so that they can use classes of the solution; the others are computed in the judge
  and go as values. Values are copies: the test does not see in-place changes to arguments.

In Python text each top-level statement, of the text or of a test function, with an assertion is one test. The rest runs
before it, in order; if it raises, the tests after it fail. Vacuous assertions (`assert True`, `assert f(1) == f(1)`)
are dropped. Standard library modules need no import.

Test text is parsed here and never run. Unreadable tests raise `BadTests` with the reason.
"""

from __future__ import annotations

import ast
import builtins
import json
import keyword
import re
import symtable
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

Check = Literal["equal", "is", "true", "false"]

_ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(?:\(\))?(?:\.[A-Za-z_]\w*(?:\(\))?)*(?<!\))")
_NAN = re.compile(r"(?<![a-z])(is_?)?nan(?![a-z])", re.IGNORECASE)


class BadTests(ValueError):
    """Tests that cannot be run; the message says which and why."""


@dataclass(frozen=True, slots=True)
class CodeSpec:
    """Everything that scoring needs of a problem; `to_text` is `Problem.answer`."""

    tests: tuple[Any, ...]
    """JSON values: Python text, or objects."""
    entry_points: tuple[str, ...] = ()
    """What the tests call, as in `add` or `Solution().add`; `check(candidate)` gets the first."""
    preamble: str = ""
    """Code before the program: imports, and a function to complete."""
    helpers: str = ""
    """Code that tests call besides the solution. Runs only in the judge."""
    setup: str = ""
    """Code that makes arguments for the tests. Runs after the program and in the judge."""

    def to_text(self) -> str:
        values = {name: getattr(self, name) for name in CodeSpec.__slots__}
        return json.dumps({name: value for name, value in values.items() if value or name == "tests"})


@dataclass(frozen=True, slots=True)
class CallTest:
    text: str
    """A Python expression, evaluated in the program's process."""
    check: Check
    expected: Any = None
    """A value made of literals, for `equal` and `is`."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """JSON values of names in `text`."""
    is_json: bool = False
    """`expected` is from JSON, where a list also stands for a tuple."""


@dataclass(frozen=True, slots=True)
class StdinTest:
    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True)
class GradingPlan:
    calls: tuple[CallTest, ...]
    judge: bytes
    """The message that makes `harness.serve_judge` run the other tests."""
    num_judged: int
    stdin: tuple[StdinTest, ...]
    may_be_nan: bool
    """Whether Python tests, or their helpers, speak of NaN."""

    @property
    def num_tests(self) -> int:
        return len(self.calls) + self.num_judged + len(self.stdin)


@lru_cache(maxsize=4096)
def read_plan(text: str) -> tuple[CodeSpec, GradingPlan]:
    """Return the spec and the plan of a `Problem.answer`."""
    table: dict[str, Any] = json.loads(text)
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    spec = CodeSpec(**values)
    return spec, plan_tests(spec)


def plan_tests(spec: CodeSpec) -> GradingPlan:
    for name in spec.entry_points:
        if _ENTRY_POINT.fullmatch(name) is None or any(map(keyword.iskeyword, re.findall(r"\w+", name))):
            raise BadTests(f"entry_point = {name!r:.80}: expected a name such as 'add' or 'Solution().add'")
    texts = [test for test in spec.tests if isinstance(test, str)]
    objects = [
        _object_test(test, spec, f"test {number}")
        for number, test in enumerate(spec.tests, start=1)
        if not isinstance(test, str)
    ]
    calls = [test for test in objects if isinstance(test, CallTest)]
    stdin = [test for test in objects if isinstance(test, StdinTest)]
    judge, num_judged = b"", 0
    if texts:
        planner = _Planner(spec, "\n".join(texts))
        calls += planner.calls
        judge, num_judged = planner.message(), planner.num_judged
    may_be_nan = _NAN.search("\n".join([spec.helpers, *texts])) is not None
    plan = GradingPlan(tuple(calls), judge, num_judged, tuple(stdin), may_be_nan)
    if not plan.num_tests:
        raise BadTests("no test: expected assert statements, a check(candidate) function, or objects with 'call' …")
    if stdin and len(stdin) < plan.num_tests:
        raise BadTests("tests of stdin and of calls in one problem: use one kind, since the program is run differently")
    return plan


def infer_entry_points(tests: Sequence[Any], solution: str = "", setup: str = "", helpers: str = "") -> tuple[str, ...]:
    """Return the names that Python tests call but do not define, limited to those that a given `solution` defines."""
    source = "\n".join(test for test in tests if isinstance(test, str))
    tree = _parse(source, "tests")
    checks = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called_name(node) == "check"]
    given = [call.args[0].id for call in checks if call.args and isinstance(call.args[0], ast.Name)]
    defined = _top_level_names(solution)
    # MBPP has a solution called `sum`: what a solution defines is not a builtin.
    known = _bound_names(tree) | _top_level_names(setup) | _top_level_names(helpers) | (set(dir(builtins)) - defined)
    called = given or _outer_calls(tree, known)
    names = tuple(name for name in dict.fromkeys(called) if not solution or name in defined)
    if len(names) > 1 and not solution:
        raise BadTests(f"the tests call {', '.join(names)}: name the solution's function in 'entry_point'")
    return names


def _object_test(test: Any, spec: CodeSpec, where: str) -> CallTest | StdinTest:
    if not isinstance(test, Mapping):
        raise BadTests(f"{where} is {test!r:.60}: expected Python text or an object")
    keys = set(test)
    if keys == {"call", "expected"}:
        text = test["call"]
        if not isinstance(text, str):
            raise BadTests(f"{where}: 'call' is {text!r:.60}, expected Python text such as 'add(1, 2)'")
        _parse(text, f"{where}: 'call'", mode="eval")
        return CallTest(text.strip(), "equal", test["expected"], is_json=True)
    if keys == {"stdin", "stdout"} or (keys == {"input", "output"} and not spec.entry_points):
        first, second = ("stdin", "stdout") if "stdin" in keys else ("input", "output")
        if not isinstance(test[first], str) or not isinstance(test[second], str):
            fix = "; arguments of a function need an 'entry_point'" if first == "input" else ""
            raise BadTests(f"{where}: {first!r} and {second!r} must be strings{fix}")
        return StdinTest(test[first], test[second])
    if keys == {"input", "output"}:
        arguments = test["input"]
        if not isinstance(arguments, (list, dict)):
            raise BadTests(f"{where}: 'input' is {arguments!r:.60}, expected a list (or object) of arguments")
        star = "*" if isinstance(arguments, list) else "**"
        text = f"{spec.entry_points[0]}({star}_value_0)"
        return CallTest(text, "equal", test["output"], {"_value_0": arguments}, is_json=True)
    raise BadTests(
        f"{where} has the keys {', '.join(sorted(map(str, keys))) or '(none)'}: expected call and expected, "
        "input and output, or stdin and stdout"
    )


class _Planner:
    """A planner that sorts Python test statements into call tests and blocks for the judge."""

    def __init__(self, spec: CodeSpec, source: str) -> None:
        tree = _parse(source, "tests")
        self.spec = spec
        self.calls: list[CallTest] = []
        self.bindings = {name: name for name in spec.entry_points if name.isidentifier()}
        of_tests = _bound_names(tree) | _top_level_names(spec.helpers)
        known = of_tests | _top_level_names(spec.setup) | set(self.bindings)
        self.imports = tuple(sorted(_module_names(tree) - known))
        # Names that the program lacks: an argument that uses any of them is computed in the judge.
        self.of_judge = of_tests.union(self.imports).difference(self.bindings)
        self.asserting = {
            node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _holds(node, _FAILING)
        }
        functions = [each for each in tree.body if isinstance(each, ast.FunctionDef) and _is_test_function(each)]
        names = {function.name for function in functions}
        rest = [each for each in tree.body if each not in functions and _called_name(each) not in names]
        # Each block is a list of (source, is it a test); the first runs in the module's own namespace.
        self.blocks = [self.block(rest), *map(self.function_block, functions)]

    def function_block(self, function: ast.FunctionDef) -> list[tuple[str, bool]]:
        parameters = [parameter.arg for parameter in (*function.args.posonlyargs, *function.args.args)]
        if function.name == "check":
            if not self.spec.entry_points:
                raise BadTests("tests: check() needs to know what to call: set 'entry_point'")
            self.bindings[parameters[0]] = self.spec.entry_points[0]
            self.of_judge.discard(parameters[0])
        if any(isinstance(node, _NOT_INLINE) for node in _own_nodes(function)):
            definition = self.rewritten(function)
            return [(definition, False), (f"{function.name}({', '.join(parameters[:1])})", True)]
        return self.block(function.body)

    def block(self, statements: Iterable[ast.stmt]) -> list[tuple[str, bool]]:
        units = []
        for statement in statements:
            match statement:
                case ast.Expr(value=ast.Constant() | ast.Name()):
                    continue
                case ast.Assert(test=test) if self.is_vacuous(test):
                    continue
                case ast.Assert(test=test) if call := self.call_test(test):
                    self.calls.append(call)
                case _:
                    units.append((self.rewritten(statement), self.is_test(statement)))
        return units

    def is_test(self, statement: ast.stmt) -> bool:
        if isinstance(statement, _DEFINITIONS):
            return False
        if _holds(statement, _FAILING):
            return True
        called = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
        names = {each.id for each in called if isinstance(each, ast.Name)}
        attributes = {each.attr for each in called if isinstance(each, ast.Attribute)}
        return bool(names & self.asserting) or any(name.startswith("assert") for name in names | attributes)

    def is_vacuous(self, test: ast.expr) -> bool:
        match test:
            case ast.Tuple(elts=elements):
                return bool(elements)
            case ast.Constant(value=value):
                return bool(value)
            case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]):
                return self.renamed(left) == self.renamed(right)
        return False

    def call_test(self, test: ast.expr) -> CallTest | None:
        if text := self.whole_call(test):
            return CallTest(text, "true")
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=call) if text := self.whole_call(call):
                return CallTest(text, "false")
            case ast.Compare(left=left, ops=[ast.Eq() | ast.Is() as operator], comparators=[right]):
                text, literal = self.whole_call(left), right
                if not text:
                    text, literal = self.whole_call(right), left
                if not text:
                    return None
                try:
                    expected = ast.literal_eval(literal)
                except (ValueError, TypeError, SyntaxError):  # not made of literals
                    return None
                if isinstance(operator, ast.Eq):
                    return CallTest(text, "equal", expected)
                if expected is None or isinstance(expected, bool):
                    return CallTest(text, "is", expected)
        return None

    def whole_call(self, node: ast.expr) -> str:
        """Return the text of a call of an entry point whose arguments the program can compute; else ""."""
        if not isinstance(node, ast.Call) or self.entry_point(node.func) is None:
            return ""
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        return "" if any(map(self.needs_judge, arguments)) else self.renamed(node)

    def entry_point(self, function: ast.expr) -> str | None:
        if isinstance(function, ast.Name):
            return self.bindings.get(function.id)
        text = ast.unparse(function)
        return text if text in self.spec.entry_points else None

    def needs_judge(self, argument: ast.expr) -> bool:
        return not self.of_judge.isdisjoint(_free_names(argument))

    def renamed(self, node: ast.expr) -> str:
        return ast.unparse(_Rename(self.bindings).visit(_copy(node)))

    def rewritten(self, statement: ast.stmt) -> str:
        return ast.unparse(ast.fix_missing_locations(_Relay(self).visit(_copy(statement))))

    @property
    def num_judged(self) -> int:
        return sum(is_test for block in self.blocks for _, is_test in block)

    def message(self) -> bytes:
        setup = [source for source in (self.spec.helpers, self.spec.setup) if source]
        return json.dumps(["run", setup, self.imports, self.bindings, self.blocks]).encode()


_FAILING = (ast.Assert, ast.Raise)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_NOT_INLINE = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Nonlocal, ast.Global)


class _Rename(ast.NodeTransformer):
    """Replaces names by the entry points that they stand for."""

    def __init__(self, bindings: Mapping[str, str]) -> None:
        self.bindings = bindings

    def visit_Name(self, node: ast.Name) -> ast.expr:
        target = self.bindings.get(node.id, node.id)
        return node if target == node.id else ast.parse(target, mode="eval").body


class _Relay(ast.NodeTransformer):
    """Replaces calls of an entry point: `f(a, 1)` becomes `_relay("f(_value_0, 1)", {"_value_0": a})`."""

    def __init__(self, planner: _Planner) -> None:
        self.planner = planner

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if self.planner.entry_point(node.func) is None:
            return self.generic_visit(node)  # type: ignore[return-value]
        values: dict[str, ast.expr] = {}

        def argument(value: ast.expr) -> ast.expr:
            if isinstance(value, ast.Starred):
                return ast.Starred(argument(value.value), ast.Load())
            if not self.planner.needs_judge(value):
                return value
            name = f"_value_{len(values)}"
            values[name] = self.visit(value)
            return ast.Name(name, ast.Load())

        arguments = [argument(value) for value in node.args]
        keywords = [ast.keyword(keyword.arg, argument(keyword.value)) for keyword in node.keywords]
        text = self.planner.renamed(ast.Call(node.func, arguments, keywords))
        table = ast.Dict([ast.Constant(name) for name in values], list(values.values()))
        return ast.Call(ast.Name("_relay", ast.Load()), [ast.Constant(text), table], [])


def _parse(source: str, where: str, mode: Literal["exec", "eval"] = "exec") -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as '\d' in a data set's string
            return ast.parse(source.strip() if mode == "eval" else source, mode=mode)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadTests(f"{where}: not Python: {str(error)[:120]}") from None


def _copy(node: ast.expr | ast.stmt) -> Any:
    text = ast.unparse(node)
    return ast.parse(text, mode="eval").body if isinstance(node, ast.expr) else ast.parse(text).body[0]


def _holds(node: ast.AST, kinds: tuple[type[ast.AST], ...]) -> bool:
    return any(isinstance(each, kinds) for each in ast.walk(node))


def _own_nodes(function: ast.FunctionDef) -> Iterable[ast.AST]:
    """Yield the nodes of a function without those of nested functions."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*_DEFINITIONS, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(node))


def _is_test_function(function: ast.FunctionDef) -> bool:
    if not _holds(function, (*_FAILING, ast.Call)):
        return False
    num_required = len(function.args.args) + len(function.args.posonlyargs) - len(function.args.defaults)
    return num_required == 1 if function.name == "check" else function.name.startswith("test") and num_required == 0


def _called_name(node: ast.AST) -> str:
    """Return the name that a call, or a statement that is only a call, calls; "" for anything else."""
    match node:
        case ast.Call(func=ast.Name(id=name)) | ast.Expr(value=ast.Call(func=ast.Name(id=name))):
            return str(name)
    return ""


def _outer_calls(node: ast.AST, known: set[str]) -> list[str]:
    """Return unknown names that are called, except within the arguments of such a call."""
    name = _called_name(node)
    if name and name not in known:
        return [name]
    return [name for child in ast.iter_child_nodes(node) for name in _outer_calls(child, known)]


def _bound_names(tree: ast.AST) -> set[str]:
    """Return every name bound anywhere within: assigned, imported, defined or a parameter."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.alias(name=name, asname=other):
                names.add(other or name.partition(".")[0])
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
    return names


def defines(source: str, entry_point: str) -> bool:
    """Return whether the text is Python and defines the first name of the entry point."""
    try:
        return re.split(r"[(.]", entry_point)[0] in _top_level_names(source)
    except BadTests:
        return False


@lru_cache(maxsize=1024)
def _top_level_names(source: str) -> frozenset[str]:
    """Return the names that running the text would define."""
    names: set[str] = set()
    for statement in _parse(source, "code beside the tests").body:
        names |= {statement.name} if isinstance(statement, _DEFINITIONS) else _bound_names(statement)
    return frozenset(names)


def _module_names(tree: ast.AST) -> set[str]:
    """Return the standard library modules that the code uses an attribute of."""
    bases = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {base.id for base in bases if isinstance(base, ast.Name)} & sys.stdlib_module_names


def _free_names(node: ast.expr) -> set[str]:
    """Return the free names of an expression."""
    expression = node.value if isinstance(node, ast.Starred) else node
    names: set[str] = set()
    waiting = [symtable.symtable(f"(\n{ast.unparse(expression)}\n)", "<test>", "eval")]
    while waiting:
        table = waiting.pop()
        is_top = table.get_type() == "module"
        names |= {symbol.get_name() for symbol in table.get_symbols() if is_top or symbol.is_global()}
        waiting.extend(table.get_children())
    return names
