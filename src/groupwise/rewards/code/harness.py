"""Our code inside the sandbox: in the process of the model's program, and in the judge.

`serve_program` loads the program, evaluates calls, and answers with plain values. The program can change everything in
its process, so its answers count only as the program's own.

    ["load", [source …], setup]    the first source that compiles is run   → ["loaded"] ["no code", why] ["raised", why]
    ["compile", [source …]]        nothing is run                          → ["loaded"] ["no code", why]
    ["call", text, {name: tree}]   a Python expression                     → ["value", tree] ["raised", why, builtin]
                                                                             ["not plain", why]

`serve_judge` runs a data set's test code. It has the expected values, and gets only plain values from the program:

    ["run", setup, imports, bindings, blocks]  → any number of ["call", …], answered as above, and of ["test", passed,
                                                 why], one for each test in order; at last ["done"]

A message is JSON in ASCII. The channel is a stream socket; the length precedes each message.
"""

from __future__ import annotations

import builtins
import importlib
import io
import json
import os
import random
import struct
import sys
import types
import warnings
from typing import Any

from groupwise.rewards.code.plain_values import MAX_TREE_BYTES, BadTree, NotPlain, decode, encode

CHANNEL_DESCRIPTOR = 3
_FRAME = struct.Struct("!I")


def send(message: Any) -> None:
    send_text(json.dumps(message))


def send_text(text: str) -> None:
    data = text.encode("ascii")
    data = _FRAME.pack(len(data)) + data
    while data:
        data = data[os.write(CHANNEL_DESCRIPTOR, data) :]


def receive() -> Any:
    (size,) = _FRAME.unpack(_read(_FRAME.size))
    return json.loads(_read(size))


def _read(size: int) -> bytes:
    parts = []
    while size:
        part = os.read(CHANNEL_DESCRIPTOR, min(size, 1 << 20))
        if not part:
            os._exit(0)  # the other side has closed
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class _Silence(io.TextIOBase):
    """A stream that drops what is printed between calls, so that it does not count as output."""

    def write(self, text: str) -> int:
        return len(text)


def serve_program() -> None:
    _be_still()
    # With its own module name, `if __name__ == "__main__"` does not run, and dataclasses find their module.
    solution = types.ModuleType("solution")
    sys.modules["solution"] = solution
    namespace = solution.__dict__
    while True:
        match receive():
            case ["load", sources, setup]:
                send(_load(sources, setup, namespace))
            case ["compile", sources]:
                code, why = _compile(sources)
                send(["no code", why] if code is None else ["loaded"])
            case ["call", text, values]:
                send_text(_call(text, values, namespace))


def _be_still() -> None:
    sys.stdout = sys.stderr = _Silence()
    warnings.simplefilter("ignore")
    random.seed(0)


def _compile(sources: list[str]) -> tuple[types.CodeType | None, str]:
    """Compile the first source that is Python, or say why the last one is not."""
    why = ""
    for source in sources:
        try:
            return compile(source, "<solution>", "exec", dont_inherit=True), ""
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            why = type(error).__name__
    return None, why


def _load(sources: list[str], setup: str, namespace: dict[str, Any]) -> list[str]:
    code, why = _compile(sources)
    if code is None:
        return ["no code", why]
    try:
        exec(code, namespace)
        if setup:
            exec(compile(setup, "<setup>", "exec", dont_inherit=True), namespace)
    except BaseException as error:  # noqa: BLE001 - the program may raise anything, and SystemExit is not a pass
        return ["raised", type(error).__name__]
    return ["loaded"]


def _call(text: str, values: dict[str, Any], namespace: dict[str, Any]) -> str:
    try:
        arguments = {name: decode(tree) for name, tree in values.items()}
        value = eval(compile(text, "<test>", "eval", dont_inherit=True), namespace, arguments)
        answer = json.dumps(["value", encode(value)])
        return answer if len(answer) <= MAX_TREE_BYTES else json.dumps(["not plain", "a value too long"])
    except NotPlain as error:
        return json.dumps(["not plain", str(error)])
    except BaseException as error:  # noqa: BLE001 - the program may raise anything
        return json.dumps(["raised", type(error).__name__, _builtin_name(type(error))])


def _builtin_name(kind: type) -> str:
    """Return the nearest built-in exception, which the judge can raise for its test to catch."""
    for each in kind.__mro__:
        if getattr(builtins, each.__name__, None) is each:
            return each.__name__
    return "Exception"


class NoAnswer(BaseException):
    """The program's answer is not plain data. Not an Exception, so that no test mistakes it for an expected one."""


def relay(text: str, values: dict[str, Any]) -> Any:
    """Return the value of a call made in the solution's process."""
    send(["call", text, {name: encode(value) for name, value in values.items()}])
    match receive():
        case ["value", tree]:
            return decode(tree)
        case ["raised", str(why), str(name)]:
            kind = getattr(builtins, name, None)
            if isinstance(kind, type) and issubclass(kind, Exception):
                raise kind(why) if kind not in _WITH_ARGUMENTS else Exception(why)
            raise Exception(why)
    raise NoAnswer


def _binding(entry_point: str) -> Any:
    """Return the entry point as a value, for tests that pass it on instead of calling it by name."""

    def call(*positional: Any, **named: Any) -> Any:
        return relay(f"{entry_point}(*_value_0, **_value_1)", {"_value_0": positional, "_value_1": named})

    return call


def serve_judge() -> None:
    _be_still()
    _, setup, imports, bindings, blocks = receive()
    base: dict[str, Any] = {"__name__": "tests", "_relay": relay}
    failure = ""
    for source in setup:
        # Setup code that needs the solution fails here, which does not matter: it runs in the solution's process.
        _attempt(source, base)
    for name in imports:
        base[name] = importlib.import_module(name)
    base.update({name: _binding(entry_point) for name, entry_point in bindings.items()})
    for number, block in enumerate(blocks):
        namespace = base if number == 0 else dict(base)
        failure_here = failure
        for source, is_test in block:
            why = failure_here or _attempt(source, namespace)
            if is_test:
                send(["test", not why, why])
            elif why:
                failure_here = why
        if number == 0:
            failure = failure_here
    send(["done"])


def _attempt(source: str, namespace: dict[str, Any]) -> str:
    """Run a piece of test code; return why it failed, or ""."""
    try:
        exec(compile(source, "<tests>", "exec", dont_inherit=True), namespace)
    except (NoAnswer, NotPlain, BadTree) as error:
        return str(error) or "not plain data"
    except BaseException as error:  # noqa: BLE001 - tests fail by raising, whatever they raise
        return type(error).__name__ or "failed"
    return ""


_WITH_ARGUMENTS = (UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError, BaseExceptionGroup, ExceptionGroup)
"""Exceptions that need more than one text as argument."""
