"""What attacks aim at, and the judgement of each from outside: secrets, canaries, folders, sockets, processes.

Also a program: `python -m tests.unit.sandbox.world ISOLATION` runs all attacks as the user that it is started as, and
prints what went wrong, one line each.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from groupwise.sandbox import ProgramOutcome, Sandbox
from tests.unit.sandbox.attacks import ATTACKS, Attack

ROOT = Path(__file__).resolve().parents[3]
# Wall time beyond a program's own limits that a busy machine may need to tell us.
_SLACK_SECONDS = 30.0
_NEXT = "import random\nprint(sum(map(int, input().split())), random.random(), list({'a', 'b', 'c'}), len(dir()))"
SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/")


class World:
    """Set up on entering, with a sandbox that `check` runs attacks in."""

    def __init__(self, isolation: str) -> None:
        self.sandbox = Sandbox(isolation)
        self.secret = f"canary-{secrets.token_hex(16)}"
        self.marker = str(10**9 + secrets.randbelow(10**8))
        self.folder = Path(tempfile.mkdtemp(prefix="groupwise-world-"))
        self.writable = self.folder / "writable"

    def __enter__(self) -> World:
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self.folder)
            self._fill_folder()
            os.environ["GROUPWISE_CANARY"] = self.secret
            stack.callback(os.environ.pop, "GROUPWISE_CANARY")
            held = stack.enter_context(open(self.folder / "secret"))
            os.set_inheritable(held.fileno(), True)
            stack.enter_context(self.sandbox)
            self.first = self.sandbox.run(_NEXT, stdin="1 2 3")
            self.canary = stack.enter_context(subprocess.Popen(["sleep", "600"]))
            stack.callback(self.canary.kill)
            self.server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            self.unix = stack.enter_context(_listener(str(self.folder / "socket")))
            (self.folder / "socket").chmod(0o777)
            self.abstract = stack.enter_context(_listener(f"\0groupwise-{self.marker}"))
            self.processes_at_rest = self._processes_of_sandbox()
            self.files_at_rest = self._files()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _fill_folder(self) -> None:
        """Open to everybody, so that only the sandbox is in the way."""
        self.folder.chmod(0o755)
        self.writable.mkdir()
        self.writable.chmod(0o777)
        (self.folder / "secret").write_text(self.secret)
        (self.folder / "secret").chmod(0o666)

    def program(self, attack: Attack) -> str:
        places = {
            "SECRET_FILE": self.folder / "secret",
            "WRITABLE": self.writable,
            "REPO": ROOT,
            "OWNER": os.getpid(),
            "CANARY": self.canary.pid,
            "PORT": self.server.getsockname()[1],
            "SOCKET": self.folder / "socket",
            "ABSTRACT": f"groupwise-{self.marker}",
            "MARKER": self.marker,
        }
        source = attack.program
        for name, value in places.items():
            source = source.replace(f"@{name}@", str(value))
        return source

    def check(self, attack: Attack) -> list[str]:
        """Run one attack and the program after it; what went wrong."""
        start = time.monotonic()
        outcome = self.sandbox.run(self.program(attack), limits=attack.limits)
        taken = time.monotonic() - start
        wrong = self._judge(attack, outcome)
        if taken > attack.limits.wall + _SLACK_SECONDS:
            wrong.append(f"took {taken:.1f} s")
        wrong += self._traces()
        following = self.sandbox.run(_NEXT, stdin="1 2 3")
        if (following.status, following.stdout) != (self.first.status, self.first.stdout):
            wrong.append(f"the next program: {following}")
        return [f"{attack.name}: {one}" for one in wrong]

    def _judge(self, attack: Attack, outcome: ProgramOutcome) -> list[str]:
        wrong = []
        said = outcome.stdout + outcome.stderr
        if outcome.status not in attack.ends:
            wrong.append(f"ended {outcome.status} ({outcome.detail}): {said[-800:]}")
        reached = [line for line in said.splitlines() if line.startswith("REACHED")]
        if reached:
            wrong.append("; ".join(reached))
        if self.secret in said:
            wrong.append("knows the secret")
        if attack.says not in outcome.stdout:
            wrong.append(f"did not say {attack.says!r}: {said[-800:]}")
        if outcome.seconds > attack.limits.seconds + 0.2:
            wrong.append(f"used {outcome.seconds} s of CPU time")
        if len(outcome.stdout) > attack.limits.output_bytes or len(outcome.stderr) > attack.limits.output_bytes:
            wrong.append("was given more output than its limit")
        return wrong

    def _traces(self) -> list[str]:
        wrong = []
        if self.canary.poll() is not None:
            wrong.append("killed the canary")
        if (self.folder / "secret").read_text() != self.secret:
            wrong.append("changed the secret")
        if new := self._files() - self.files_at_rest:
            wrong.append(f"left {new}")
        if (processes := self._processes_of_sandbox()) != self.processes_at_rest:
            wrong.append(f"processes are {processes}, were {self.processes_at_rest}")
        for name, listener in (("tcp", self.server), ("unix", self.unix), ("abstract", self.abstract)):
            listener.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                listener.accept()[0].close()
                wrong.append(f"connected by {name}")
        return wrong

    def _files(self) -> set[str]:
        """Names that attacks use, in all folders that everybody can write."""
        names = {"bomb", "link", "hard", "left", "written"}
        found = {str(path) for path in self.writable.iterdir()}
        for folder in SHARED_FOLDERS:
            with contextlib.suppress(OSError):
                found |= {f"{folder}/{name}" for name in os.listdir(folder) if name in names or name.startswith("fifo")}
        return found

    def _processes_of_sandbox(self) -> set[int]:
        """Zygote, its programs, and whatever they might have made."""
        tags = (f"sandbox of process {os.getpid()}".encode(), self.marker.encode())
        return {pid for pid, line in command_lines().items() if any(tag in line for tag in tags)}


def _listener(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    return listener


def command_lines() -> dict[int, bytes]:
    """Command lines of all processes that are not zombies."""
    lines = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it may have ended since it was listed
            lines[int(name)] = Path(f"/proc/{name}/cmdline").read_bytes()
    return {pid: line for pid, line in lines.items() if line}


def main() -> None:
    with World(sys.argv[1]) as world:
        wrong = [line for attack in ATTACKS for line in world.check(attack)]
        print(f"user {os.getuid()}, {world.sandbox.isolation}: {len(ATTACKS)} attacks, {len(wrong)} wrong")
    print("\n".join(wrong))


if __name__ == "__main__":
    main()
