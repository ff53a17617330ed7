"""A pool of killable processes that runs any function on items, with a deadline that the function cannot change.

    caller ──socket──▶ supervisor (imports the function once) ──fork──▶ worker × N

The contract, whatever the function does (raise, hang, exhaust memory, kill its process, close its descriptors):

- each item gets exactly one `Answer`, in the order of the items; no other item's answer is lost, changed or swapped;
- an item that uses more CPU time than `Limits.seconds` is `TIMED_OUT`: its worker is killed and another one forked. CPU
  time makes the answer independent of the machine's load; `wall_seconds` is for items that sleep;
- an item whose process dies is `DIED`, with the signal; one that raises is `RAISED`, with the exception;
- nothing is left running when the caller ends, even by SIGKILL.

Values return as JSON, never as pickle, since the function may have read hostile text. The function and the items are
the caller's own and are sent as pickle. Linux only, for the CPU clock of another process.

The pool does not restrict network or files (`groupwise.sandbox` does).
"""

from groupwise.workers.messages import Answer, Limits, Outcome
from groupwise.workers.pool import Pool, PoolFailed, WorkerPool, num_cores, usual_workers

__all__ = ["Answer", "Limits", "Outcome", "Pool", "PoolFailed", "WorkerPool", "num_cores", "usual_workers"]
