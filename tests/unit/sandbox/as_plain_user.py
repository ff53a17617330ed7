"""Run a module as a plain user, started by root: `python -m tests.unit.sandbox.as_plain_user MODULE ARGUMENTS`.

Where the interpreter lies below a folder that only root may enter, a view of the file system is made for this process
alone in which the way to it is open. Exit code 77 with a line of explanation when this machine does not allow that.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from groupwise.sandbox import kernel

PLAIN_USER = 65534
CANNOT = 77
ROOT = Path(__file__).resolve().parents[3]


def open_the_way(paths: list[str]) -> None:
    """Enter a new mount namespace and replace each closed ancestor by an open folder with the same paths below."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    descriptors = {path: os.open(path, os.O_PATH) for path in paths}
    for closed in sorted({str(parent) for path in paths for parent in Path(path).parents if is_closed(parent)}):
        if is_closed(Path(closed)):
            kernel.mount("tmpfs", closed, "tmpfs", kernel.MS_NOSUID, "mode=755")
    for path, descriptor in descriptors.items():
        if not os.path.exists(path):
            os.makedirs(path, mode=0o755)
            kernel.mount(f"/proc/self/fd/{descriptor}", path, None, kernel.MS_BIND | kernel.MS_REC)


def is_closed(folder: Path) -> bool:
    return not folder.stat().st_mode & 0o001


def main() -> None:
    module, *arguments = sys.argv[1:]
    try:
        open_the_way([sys.base_prefix, sys.prefix, str(ROOT)])
    except kernel.KernelRefused as error:
        print(f"cannot become a plain user that reaches the interpreter: {error}")
        sys.exit(CANNOT)
    os.setgroups([])
    os.setresgid(PLAIN_USER, PLAIN_USER, PLAIN_USER)
    os.setresuid(PLAIN_USER, PLAIN_USER, PLAIN_USER)
    environment = {"HOME": "/nonexistent", "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    os.execve(sys.executable, [sys.executable, "-m", module, *arguments], environment)


if __name__ == "__main__":
    main()
