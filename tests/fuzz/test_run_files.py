"""Any damage to any file of a run: every reader answers or refuses, in bounded time, and other runs are not affected.

`outcome_of_damage(seed)` is one damage, the same for the same seed, for tests and benchmarks.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.cli import main
from groupwise.runs import Run, RunLog, layout
from groupwise.runs.results import Estimate, Result, append_group, write_result
from groupwise.web.dashboard.library import Library
from groupwise.web.dashboard.routes import answer
from tests.fuzz import examples

Outcome = Literal["answered", "refused"]

OLD_RUN = Path(__file__).parents[1] / "golden" / "old_run"
MAX_CPU_S = 5.0
"""Six times as long on the clock, for what waits and never ends on a machine that is busy."""
MAX_RESUME_CPU_S = 60.0
HOSTILE = (
    *("9" * 400, "-" + "9" * 5000, "[" * 20_000, '{"a":' * 20_000, "[" * 90 + "]" * 90, "NaN", "Infinity", "-Infinity"),
    '"' + "[" * 20_000 + '"',
    *("1e999", "1e308", "-1e308", "1e-320", "-0.0", "-1", "0", "1", "9007199254740993", "18446744073709551616"),
    *('""', '"\\ud800"', '"\\u0000<script>"', '"NaN"', '"x"', "null", "true", "[]", "{}", "[[]]", '[{"a":1}]', "[1,2]"),
)
"""Values as JSON has them, or as it must not."""
ENDPOINTS = ("metrics", "evals", "events", "findings", "recipe", "groups", "groups?q=a", "groups?kind=eval", "group")


def outcome_of_damage(seed: int) -> Outcome:
    """Damage a run in the way that `seed` says and read it with every reader; raise what a reader must not do."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        shutil.copytree(pristine(), root, dirs_exist_ok=True)
        what = damage(root, random.Random(seed))
        try:
            return read_all(root)
        except Exception as error:
            error.add_note(f"damage {seed}: {what}")
            raise


def read_all(root: Path) -> Outcome:
    outcomes = {reader.__name__: _in_time(reader, root) for reader in (watch, report, doctor, audit, reach, compare)}
    return "refused" if "refused" in outcomes.values() else "answered"


def watch(root: Path) -> Outcome:
    library = Library([root / "runs"])
    try:
        found = {run["name"]: run for run in _ask(library, "/api/runs")["runs"]}
        assert found["good"]["errors"] == []
        statuses = set()
        for run in found.values():
            for endpoint in ENDPOINTS:
                path, _, query = endpoint.partition("?")
                asked = [query]
                if path == "group":
                    groups = _ask(library, f"/api/runs/{run['id']}/groups")["groups"]
                    asked = [urlencode({key: group[key] for key in ("kind", "step", "index")}) for group in groups]
                for query in asked:
                    response = answer(library, f"/api/runs/{run['id']}/{path}", query)
                    statuses.add((run["name"], int(response.status)))
                    assert response.status == 200 or json.loads(response.body)["error"]
        assert ("good", 500) not in statuses
        return "refused" if ("bad", 500) in statuses or found.get("bad", {"errors": ["gone"]})["errors"] else "answered"
    finally:
        library.close()


def report(root: Path) -> Outcome:
    out = root / "report.html"
    outcome = _run(["report", *map(str, _runs(root)), str(root / "result"), "--out", str(out)])
    assert "good" in json.loads(out.with_suffix(".json").read_text())["title"]
    return outcome


def doctor(root: Path) -> Outcome:
    return _run(["doctor", str(root / "runs" / "bad")])


def audit(root: Path) -> Outcome:
    one, other = (_run(["audit", str(root / "runs" / "bad"), *given]) for given in ([], ["--held-out"]))
    return "refused" if "refused" in (one, other) else "answered"


def reach(root: Path) -> Outcome:
    return _run(["reach", *map(str, _runs(root)), "--scores", "0.1"])


def compare(root: Path) -> Outcome:
    bad, good = map(str, _runs(root))
    one, other = _run(["compare", good, bad, good, str(root / "result")]), _run(["compare", bad, good])
    return "refused" if "refused" in (one, other) else "answered"


def _runs(root: Path) -> list[Path]:
    return [root / "runs" / "bad", root / "runs" / "good"]


def _ask(library: Library, path: str) -> Any:
    response = answer(library, path, "")
    found = json.loads(response.body, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert response.status == 200 or path != "/api/runs", found
    return found if response.status == 200 else {"groups": []}


def _run(arguments: list[str]) -> Outcome:
    """Run a command. What it prints must be text that a terminal takes."""
    with contextlib.redirect_stdout(_terminal()), contextlib.redirect_stderr(_terminal()) as errors:
        status = main(arguments)
    errors.flush()
    assert status in (0, 1) or b"groupwise: " in errors.buffer.getvalue()  # type: ignore[attr-defined]
    return "answered" if status in (0, 1) else "refused"


def _terminal() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")


def _in_time(reader: Callable[[Path], Outcome], root: Path, max_cpu_s: float = MAX_CPU_S) -> Outcome:
    def stop(*_: Any) -> None:
        raise AssertionError(f"{reader.__name__} waits")

    earlier = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 6 * max_cpu_s)
    start = time.process_time()
    try:
        return reader(root)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
        assert time.process_time() - start < max_cpu_s, f"{reader.__name__} took {time.process_time() - start:.1f} s"


_pristine: list[tempfile.TemporaryDirectory[str]] = []


def pristine() -> Path:
    """Return a folder with two runs, of which one will be damaged, and a result on the same problems; made once."""
    if not _pristine:
        _pristine.append(tempfile.TemporaryDirectory())
        root = Path(_pristine[0].name)
        for name in ("bad", "good"):
            shutil.copytree(OLD_RUN, root / "runs" / name, ignore=shutil.ignore_patterns(layout.CHECKPOINTS))
            log = RunLog(root / "runs" / name)
            log.write_event("guards", step=2, perplexity=3.5, format_share=0.5, broken=["it fell"], action="warn")
            log.write_event("finding", step=2, check="kl_spike", severity="problem", stage="sft")
            log.close()
        run = Run(root / "runs" / "good")
        groups = run.eval_rollouts(0)
        scores = {"pass@1": Estimate(0.5, 0.1, 0.9, len(groups), "wilson")}
        task = {"options": {}} | run.recipe["task"]
        result = Result(
            {"path": "x", "checkpoint": None, "fingerprint": "f"}, task, {"split": "held_out", "fingerprint": "d"},
            run.info["verifier"], {"n": 1, "temperature": 0.0}, scores=scores, is_finished=True,
        )  # fmt: skip
        write_result(root / "result", result)
        for scored in groups:
            append_group(root / "result", scored)
    return Path(_pristine[0].name)


def damage(root: Path, dice: random.Random) -> str:
    """Damage one file or folder of the run, or at times of the result; say what was done."""
    path = dice.choice(sorted([*(root / "runs" / "bad").rglob("*"), *(root / "result").rglob("*")]))
    kind = dice.choice((_other_kind, _other_bytes, _other_values, _other_values, _other_values))
    if path.is_dir():
        kind = _other_kind
    elif kind is _other_values and path.suffix not in (".json", ".jsonl", ".toml"):
        kind = _other_bytes
    return f"{path.relative_to(root)}: {kind(path, dice)}"


def _other_kind(path: Path, dice: random.Random) -> str:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    kind = dice.choice(("FIFO", "folder", "device", "circle", "nowhere", "sparse", "zeros", "missing", "outside"))
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
        (path / "000001.jsonl").write_text("{}\n")
    elif kind in ("sparse", "zeros"):
        path.touch()
        os.truncate(path, 1 << 42 if kind == "sparse" else 1 << 25)
    elif kind != "missing":
        target = {"device": "/dev/zero", "circle": path, "nowhere": "/nowhere/at/all", "outside": "/etc/hostname"}[kind]
        path.symlink_to(target)
    return kind


def _other_bytes(path: Path, dice: random.Random) -> str:
    data = path.read_bytes()
    start = dice.randrange(len(data) + 1)
    end = min(len(data), start + dice.choice((0, 1, 10, 1000)))
    news = (b"", b"\n", b"\x00" * 100, b"\xff\xfe", b"\xef\xbb\xbf", b'"', b"[" * 20_000, dice.randbytes(20))
    new = dice.choice(news)
    path.write_bytes(data[:start] + new + data[end:])
    return f"bytes {start} to {end} are {new[:20]!r} ({len(new)})"


def _other_values(path: Path, dice: random.Random) -> str:
    """Replace values in a line of JSON, or the right side of a line of TOML; or drop the key."""
    lines = path.read_text().split("\n")
    number = dice.choice([number for number, line in enumerate(lines) if line] or [0])
    hostile = dice.choice(HOSTILE)
    if path.suffix == ".toml":
        key, equals, _ = lines[number].partition(" = ")
        lines[number] = f"{key}{equals}{hostile}" if equals else dice.choice(("[a]", "[[stages]]", "[stages]", ""))
        what = lines[number][:60]
    elif not lines[number]:
        lines[number] = what = hostile
    else:
        table = json.loads(path.read_text() if path.suffix == ".json" else lines[number])
        where = list(_places(table))
        trail = dice.choice(where)
        holder = table
        for key in trail[:-1]:
            holder = holder[key]
        if dice.random() < 0.15:
            del holder[trail[-1]]
            what = f"{trail} is missing"
        else:
            holder[trail[-1]] = "HOSTILE"
            what = f"{trail} is {hostile[:20]}"
        text = json.dumps(table).replace('"HOSTILE"', hostile)
        lines = [text, ""] if path.suffix == ".json" else [*lines[:number], text, *lines[number + 1 :]]
    path.write_text("\n".join(lines))
    return f"line {number + 1}: {what}"


def _places(value: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each value inside; of long lists, to the first ones."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, item in items:
        yield (key,)
        yield from ((key, *rest) for rest in _places(item))


@examples(30)
@given(seed=st.integers(0, 2**32))
def test_any_damage_is_answered_or_refused(seed: int) -> None:
    assert outcome_of_damage(seed) in ("answered", "refused")


def resume(root: Path) -> Outcome:
    return _run(["train", "--resume", str(root / "runs" / "bad")])


@examples(2)
@given(seed=st.integers(0, 2**32))
def test_a_damaged_run_is_resumed_or_refused(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        shutil.copytree(OLD_RUN, root / "runs" / "bad")
        hypothesis.note(damage(root, random.Random(seed)))
        assert _in_time(resume, root, MAX_RESUME_CPU_S) in ("answered", "refused")


def test_without_damage_every_reader_answers() -> None:
    assert read_all(copy.copy(pristine())) == "answered"
