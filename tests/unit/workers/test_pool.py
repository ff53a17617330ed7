"""The pool against functions that do everything wrong: exactly one answer per item, the right one, and nothing left."""

from __future__ import annotations

import functools
import operator
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from groupwise.workers import Answer, Limits, Outcome, PoolFailed, WorkerPool, usual_workers
from groupwise.workers.messages import ENDING, SHARE
from groupwise.workers.pool import read_answers
from tests.waiting import wait_until

from . import functions

# On a busy machine a wall clock says little: short limits of it are for items that do nothing but wait.
QUICK = Limits(seconds=0.3, wall_seconds=60, memory_mb=512)
SLEEPY = Limits(seconds=0.3, wall_seconds=1.5, memory_mb=512)


@pytest.fixture
def make_pool() -> Iterator[Callable[..., WorkerPool]]:
    pools = []

    def make(function: Any, num_workers: int = 2, limits: Limits = QUICK) -> WorkerPool:
        pools.append(WorkerPool(function, num_workers, limits))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.mark.parametrize(
    ("cores", "num_callers", "expected"),
    [(1, 1, 2), (2, 1, 2), (16, 1, 8), (7, 1, 3), (128, 1, 16), (64, 8, 4), (16, 8, 2)],
)
def test_callers_keep_half_of_the_cores(cores: int, num_callers: int, expected: int) -> None:
    assert usual_workers(cores, num_callers) == expected


def ask(pool: WorkerPool, shared: Any, items: list[Any]) -> list[Answer]:
    return pool.answers(pool.submit(shared, items))


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_answers_are_what_the_function_returns_in_the_order_of_the_items(make_pool: Any) -> None:
    pool = make_pool(functions.echo)
    items = [*range(50), "text", "\udcff\x00", "é" * 1000, None, [1.5, {"a": True}]]
    answers = ask(pool, "shared", items)
    assert [answer.value for answer in answers] == [functions.echo("shared", item) for item in items]
    assert {answer.outcome for answer in answers} == {Outcome.DONE}


def test_no_items_are_no_answers(make_pool: Any) -> None:
    assert ask(make_pool(functions.echo), "shared", []) == []


def test_nothing_is_imported_from_the_current_folder(
    make_pool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a run directory of somebody else, with a module named as one of the standard library."""
    for name in ("ctypes", "pickle", "groupwise"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w')\n")
    monkeypatch.chdir(tmp_path)
    pool = make_pool(functions.echo)
    assert [answer.value for answer in pool.answers(pool.submit("a", [1]))] == [["a", 1]]
    assert not (tmp_path / "ran").exists()


def test_tickets_can_be_asked_for_in_any_order(make_pool: Any) -> None:
    pool = make_pool(functions.echo)
    tickets = [pool.submit(number, list(range(number))) for number in range(30)]
    for number in reversed(range(30)):
        assert [answer.value for answer in pool.answers(tickets[number])] == [[number, n] for n in range(number)]


@pytest.mark.parametrize(
    ("misdeed", "outcome", "detail"),
    [
        ("spin", Outcome.TIMED_OUT, "0.3 s of CPU time"),
        ("power", Outcome.TIMED_OUT, "0.3 s of CPU time"),
        ("thread", Outcome.TIMED_OUT, "0.3 s of CPU time"),
        ("sleep", Outcome.TIMED_OUT, "no answer within 1.5 s"),
        ("stop", Outcome.TIMED_OUT, "no answer within 1.5 s"),
        ("kill", Outcome.DIED, "SIGKILL"),
        ("signal without a name", Outcome.DIED, "signal 40"),
        ("segfault", Outcome.DIED, "SIGSEGV"),
        ("exit", Outcome.DIED, "exit code 3"),
        ("sys.exit", Outcome.RAISED, "SystemExit: 0"),
        ("interrupt", Outcome.RAISED, "KeyboardInterrupt"),
        ("raise", Outcome.RAISED, "ValueError: no such thing"),
        ("raise badly", Outcome.RAISED, "BadText: (its message cannot be read)"),
        ("surrogate", Outcome.RAISED, "ValueError: \udcff"),
        ("memory", Outcome.RAISED, "MemoryError"),
        ("not json", Outcome.RAISED, "TypeError"),
        ("deep", Outcome.RAISED, "RecursionError"),
        ("long", Outcome.RAISED, "returned 2000002 characters"),
        ("close connection", Outcome.DIED, ""),
        ("write garbage", Outcome.DIED, ""),
        ("forge next", Outcome.DIED, ""),
        ("print", Outcome.DONE, ""),
    ],
)
def test_a_misdeed_costs_its_own_item_and_no_other(
    make_pool: Any, misdeed: str, outcome: Outcome, detail: str, capfd: pytest.CaptureFixture[str]
) -> None:
    pool = make_pool(functions.misbehave, limits=SLEEPY if misdeed in ("sleep", "stop") else QUICK)
    pool.start()
    start = time.monotonic()
    items = [misdeed, *(f"item {number}" for number in range(40))]
    answers = ask(pool, "shared", items)
    assert time.monotonic() - start < 60
    assert (answers[0].outcome, answers[0].value) == (outcome, None)
    assert detail in answers[0].detail
    assert [answer.value for answer in answers[1:]] == [["shared", item] for item in items[1:]]
    # And the next job is clean.
    assert [answer.value for answer in ask(pool, 1, ["next"])] == [[1, "next"]]
    assert "printed" not in capfd.readouterr().out


def test_a_hung_item_costs_its_deadline_while_the_others_go_on(make_pool: Any) -> None:
    pool = make_pool(functions.misbehave, limits=Limits(seconds=2.0, wall_seconds=60))
    pool.start()
    hung = pool.submit("a", ["spin"])
    others = [pool.submit("b", ["x"] * 8) for _ in range(20)]
    # One worker is spinning, and may hold one of these jobs, whichever; the other worker does all else meanwhile.
    while sum(ticket[0] in pool._done for ticket in others) < 19:
        pool._wait()
    assert hung[0] in pool._waiting
    (answer,) = pool.answers(hung)
    assert answer.outcome is Outcome.TIMED_OUT
    assert 2.0 <= answer.seconds < 30
    assert all(answer.value for ticket in others for answer in pool.answers(ticket))


def test_over_the_limit_is_timed_out_even_if_nobody_looked_in_time(make_pool: Any) -> None:
    function = functions.Patched(functions.seconds_of_cpu, functions.never_check_limits)
    pool = make_pool(function, limits=Limits(seconds=0.2, wall_seconds=30))
    answers = ask(pool, None, [0.01, 0.25, 0.01])
    assert [answer.outcome for answer in answers] == [Outcome.DONE, Outcome.TIMED_OUT, Outcome.DONE]
    assert answers[1].seconds >= 0.25


def test_answers_that_cannot_be_read_are_answers_without_a_value() -> None:
    for body in (b"[{not json", b"\xff", b"[" * 100_000, b"[1]", b"3", b"[1,2,3]"):
        frame = SHARE.pack(0, 0, 2) + ENDING.pack(Outcome.DONE, 0.1) * 2 + body
        answers = read_answers(frame, 2, Limits())
        assert [(answer and answer.outcome, answer and answer.value) for answer in answers] == [
            (Outcome.DIED, None)
        ] * 2
    (answer,) = read_answers(SHARE.pack(0, 0, 1) + ENDING.pack(99, 0.1) + b"[1]", 1, Limits())
    assert answer is not None
    assert (answer.outcome, answer.detail) == (Outcome.DIED, "its answer cannot be read: 99 is not a valid Outcome")


def test_a_hundred_crashes_in_ten_thousand_items_lose_and_swap_nothing(make_pool: Any) -> None:
    pool = make_pool(functions.die_on_multiples, limits=Limits())
    tickets = [pool.submit(100, list(range(first, first + 16))) for first in range(0, 10_000, 16)]
    answers = [answer for ticket in tickets for answer in pool.answers(ticket)]
    assert len(answers) == 10_000
    for number, answer in enumerate(answers):
        if number % 100 == 0:
            assert (answer.outcome, answer.value) == (Outcome.DIED, None)
        else:
            assert (answer.outcome, answer.value) == (Outcome.DONE, number * 3)


def test_it_works_the_same_from_threads(make_pool: Any) -> None:
    pool = make_pool(functions.misbehave)
    results: dict[int, list[Any]] = {}

    def work(number: int) -> None:
        found = []
        for round_number in range(5):
            answers = ask(pool, number, [f"{round_number}-{n}" for n in range(10)] + ["kill"])
            found += [answer.value for answer in answers]
        results[number] = found

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        expected = [[[number, f"{r}-{n}"] for n in range(10)] + [None] for r in range(5)]
        assert results[number] == [value for values in expected for value in values]


def test_the_pool_outlives_the_thread_that_started_it(make_pool: Any) -> None:
    pool = make_pool(functions.echo)
    thread = threading.Thread(target=pool.start)
    thread.start()
    thread.join()
    time.sleep(0.2)
    assert ask(pool, 1, [2])[0].value == [1, 2]


def test_large_items_do_not_block_either_side(make_pool: Any) -> None:
    pool = make_pool(functions.echo)
    text = "x" * 300_000
    tickets = [pool.submit("", [text] * 8) for _ in range(20)]
    assert all(answer.value == ["", text] for ticket in tickets for answer in pool.answers(ticket))


def test_a_killed_worker_takes_its_children_along(make_pool: Any, tmp_path: Path) -> None:
    pool = make_pool(functions.leave_a_child)
    note = tmp_path / "pid"
    assert ask(pool, "", [str(note)])[0].outcome is Outcome.TIMED_OUT
    assert wait_until(lambda: not is_running(int(note.read_text())))


def test_closing_leaves_no_process(make_pool: Any) -> None:
    pool = make_pool(functions.pids, num_workers=3)
    found = {pid for answer in ask(pool, 0, list(range(60))) for pid in answer.value}
    assert len(found) >= 3
    assert all(is_running(pid) for pid in found)
    pool.close()
    assert not any(is_running(pid) for pid in found)
    # A closed pool starts again when it is asked again.
    assert ask(pool, 0, [1])[0].outcome is Outcome.DONE


@pytest.mark.parametrize("is_hung", [False, True])
def test_nothing_outlives_a_killed_caller(is_hung: bool) -> None:
    code = f"""
import time
from groupwise.workers import WorkerPool, Limits
from tests.unit.workers import functions
pool = WorkerPool(functions.pids, 2)
found = {{pid for answer in pool.answers(pool.submit(0, list(range(40)))) for pid in answer.value}}
if {is_hung}:
    other = WorkerPool(functions.misbehave, 2, Limits(seconds=600, wall_seconds=600))
    other.submit(0, ["spin", "spin"])
    found |= {{pool._process.pid, other._process.pid}}
print(*found, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        found = [int(pid) for pid in caller.stdout.readline().split()]
        assert len(found) >= 3
        assert all(is_running(pid) for pid in found)
        caller.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not any(is_running(pid) for pid in found))


def test_a_dead_supervisor_is_replaced_and_its_jobs_done_again(make_pool: Any) -> None:
    pool = make_pool(functions.echo)
    for _ in range(5):
        pool.start()
        ticket = pool.submit("again", list(range(100)))
        os.kill(pool._process.pid, signal.SIGKILL)
        assert [answer.value for answer in pool.answers(ticket)] == [["again", n] for n in range(100)]


def test_an_interrupted_wait_leaves_the_pool_usable(make_pool: Any) -> None:
    pool = make_pool(functions.misbehave)
    ticket = pool.submit(0, ["sleep"])

    def interrupt(*_: object) -> None:
        raise InterruptedError("stop")

    old = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(InterruptedError):
            pool.answers(ticket)
    finally:
        signal.signal(signal.SIGALRM, old)
    assert ask(pool, 0, ["x"])[0].value == [0, "x"]


def test_what_cannot_be_sent_is_refused_at_once(make_pool: Any) -> None:
    with pytest.raises(PoolFailed, match="cannot be sent to another process"):
        WorkerPool(functools.partial(operator.contains, threading.Lock()), 1)


def test_what_cannot_be_imported_is_refused_with_the_reason(make_pool: Any) -> None:
    pool = make_pool(functions.Unimportable())
    with pytest.raises(PoolFailed, match=r"ImportError: no module named 'mine'.*verifier.workers = 0"):
        pool.start()


def test_workers_that_cannot_live_do_not_fork_for_ever(make_pool: Any, capfd: pytest.CaptureFixture[str]) -> None:
    pool = make_pool(functions.Patched(functions.echo, functions.break_workers))
    pool.start()
    assert pool._process.wait(timeout=60) == 1
    assert "verifier workers end as soon as they start, with exit code 1" in capfd.readouterr().err


def test_a_worker_is_replaced_before_its_caches_grow_for_ever(make_pool: Any) -> None:
    pool = make_pool(functions.Patched(functions.own_pid, functions.replace_after_100_items), num_workers=1)
    tickets = [pool.submit(0, [0] * 8) for _ in range(100)]
    found = [answer.value for ticket in tickets for answer in pool.answers(ticket)]
    assert 6 <= len(set(found)) <= 8
    assert None not in found
