"""Sandboxed programs per second: for each isolation, with 1 and with 2 sandboxes in processes of their own.

    python benchmarks/sandbox_bench.py [--seconds 5]

A run is a small program that reads stdin, computes a little and prints; its answer is checked. "session" is a program
that stays and answers messages, as the call of a function does.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable

from groupwise.sandbox import Sandbox, probe
from groupwise.sandbox.client import ISOLATIONS

PROGRAM = "import collections\nwords = input().split()\nprint(collections.Counter(words).most_common(1)[0][0])\n"
ECHO = """
import os
while head := os.read(3, 4):
    body = os.read(3, int.from_bytes(head, "big"))
    os.write(3, head + body)
"""


def run_programs(sandbox: Sandbox, seconds: float) -> float:
    """Runs per second."""
    num_runs, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        outcome = sandbox.run(PROGRAM, stdin=f"a b{num_runs} b{num_runs}\n")
        assert outcome.stdout == f"b{num_runs}\n", outcome
        num_runs += 1
    return num_runs / (time.perf_counter() - start)


def exchange_messages(sandbox: Sandbox, seconds: float) -> float:
    """Messages there and back per second."""
    num_messages, start = 0, time.perf_counter()
    with sandbox.open(ECHO) as session:
        # The limits count over the whole session, hence the cap.
        while time.perf_counter() - start < min(seconds, 1.0):
            session.send(b"%d" % num_messages)
            assert session.receive() == b"%d" % num_messages
            num_messages += 1
        return num_messages / (time.perf_counter() - start)


def measure(
    isolation: str,
    seconds: float,
    work: Callable[[Sandbox, float], float],
    barrier: multiprocessing.synchronize.Barrier,
    results: multiprocessing.Queue[float],
) -> None:
    with Sandbox(isolation) as sandbox:
        sandbox.run("pass")
        barrier.wait()
        results.put(work(sandbox, seconds))


def measure_in_parallel(isolation: str, num_sandboxes: int, seconds: float, work: Callable) -> float:
    """The sum over processes that start together."""
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(num_sandboxes), context.Queue()
    arguments = (isolation, seconds, work, barrier, results)
    processes = [context.Process(target=measure, args=arguments) for _ in range(num_sandboxes)]
    for process in processes:
        process.start()
    total = sum(results.get() for _ in processes)
    for process in processes:
        process.join()
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    seconds = parser.parse_args().seconds
    answers = probe()
    load = os.getloadavg()[0]
    print(f"{answers['system']}, {os.cpu_count()} cores, user {os.getuid()}, load before: {load:.1f}")
    for isolation in ISOLATIONS:
        if answers[isolation] != "ok":
            print(f"{isolation}: {answers[isolation]}")
            continue
        start = time.perf_counter()
        with Sandbox(isolation) as sandbox:
            sandbox.run("pass")
            print(f"{isolation}: first run after {(time.perf_counter() - start) * 1000:.0f} ms")
        for num_sandboxes in (1, 2):
            rate = measure_in_parallel(isolation, num_sandboxes, seconds, run_programs)
            print(f"{isolation}: {num_sandboxes} sandbox(es): {rate:.0f} runs/s")
        print(f"{isolation}: 1 session: {measure_in_parallel(isolation, 1, seconds, exchange_messages):.0f} messages/s")


if __name__ == "__main__":
    main()
