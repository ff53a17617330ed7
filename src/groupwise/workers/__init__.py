"""A pool of killable processes that runs any function on items, with a deadline that the function cannot touch.

    caller ──socket──▶ supervisor (imports the function once) ──fork──▶ worker × N

The contract, whatever the function does (raise, hang, exhaust memory, kill its process, close its descriptors):

- each item gets exactly one `Answer`, in the order of the items; no other item's answer is lost, changed or swapped;
- an item that uses more CPU time than `Limits.seconds` is `TIMED_OUT`: its worker is killed and another one forked. The
  limit is CPU time, so that the answer does not depend on how busy the machine is; `wall_seconds` catches what sleeps;
- an item whose process dies is `DIED`, with the signal; one that raises is `RAISED`, with the exception;
- nothing is left running when the caller ends, even by SIGKILL.

Values come back as JSON and never as pickle, since the function may have read hostile text. The function and the items
go out as pickle: they are the caller's own. Linux only: the CPU clock of another process is a Linux clock.

What it does not do: keep a function from the network or the files (that is `groupwise.sandbox`).
"""

from groupwise.workers.messages import Answer, Limits, Outcome
from groupwise.workers.pool import Pool, PoolFailed, WorkerPool, num_cores, usual_workers

__all__ = ["Answer", "Limits", "Outcome", "Pool", "PoolFailed", "WorkerPool", "num_cores", "usual_workers"]
