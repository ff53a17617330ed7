"""Which machine each verifier worker goes to."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from groupwise.workers.ray_hosts import WorkerShare, spread_workers


def test_each_worker_has_a_cpu_where_there_are_enough() -> None:
    both = [WorkerShare("a", 2, 2), WorkerShare("b", 1, 1)]
    assert spread_workers(1, 3, {"a": 8.0, "b": 4.0}) == [both]
    assert spread_workers(2, 1, {"a": 1.0, "b": 1.0}) == [[WorkerShare("a", 1, 1)], [WorkerShare("b", 1, 1)]]


def test_workers_share_what_there_is_where_there_are_not() -> None:
    assert spread_workers(1, 4, {"a": 1.0, "b": 1.0}) == [[WorkerShare("a", 2, 1), WorkerShare("b", 2, 1)]]
    assert spread_workers(1, 4, {"a": 1.0}) == [[WorkerShare("a", 4, 1)]]
    assert spread_workers(2, 2, {"a": 1.0, "b": 0.0}) == [[WorkerShare("a", 2, 0.5)], [WorkerShare("a", 2, 0.5)]]


def test_without_free_cpus_they_are_spread_all_the_same() -> None:
    both = [WorkerShare("a", 1, 0), WorkerShare("b", 1, 0)]
    assert spread_workers(2, 2, {"a": 0.0, "b": 0.0}) == [both, both]


def test_no_workers() -> None:
    assert spread_workers(3, 0, {"a": 4.0}) == [[], [], []]


@given(
    st.integers(1, 6),
    st.integers(0, 40),
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0, 16.0]), min_size=1, max_size=5),
)
def test_every_caller_has_its_workers_and_no_machine_promises_what_it_has_not(
    num_callers: int, num_workers: int, cpus: list[float]
) -> None:
    free = {f"node-{number}": amount for number, amount in enumerate(cpus)}
    shares = spread_workers(num_callers, num_workers, free)
    assert [sum(share.num_workers for share in mine) for mine in shares] == [num_workers] * num_callers
    promised: Counter[str] = Counter()
    for share in (share for mine in shares for share in mine):
        promised[share.node_id] += share.num_cpus  # type: ignore[assignment]
        assert share.num_cpus < 1 or share.num_cpus == int(share.num_cpus)
    assert all(promised[node] <= free[node] + 1e-9 for node in free)
