"""Run directories and JSON files of the experiments, one packed archive each: benchmarks/results/archives/NAME.tar.xz.

    python benchmarks/archives.py unpack countdown runs  # writes runs/countdown/...
    python benchmarks/archives.py pack runs/countdown    # writes the archive again

Packing the same files gives the same bytes: names are sorted, times and owners are fixed. A run directory is stored
without rollouts and checkpoints.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

ARCHIVES = Path(__file__).parent / "results" / "archives"
SUFFIX = ".tar.xz"


def stored(path: str) -> Path:
    """A file or folder of an archive, on disk: `countdown/staged-0` is `staged-0` in countdown.tar.xz."""
    return _unpacked(path.partition("/")[0]).parent / path


@functools.cache
def _unpacked(name: str) -> Path:
    """Unpacked once per process, into a directory that is removed at exit."""
    folder = tempfile.mkdtemp(prefix="groupwise-archive-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return unpack(ARCHIVES / f"{name}{SUFFIX}", Path(folder))


def unpack(archive: Path, folder: Path) -> Path:
    """Writes the archive's files into a folder of its name; returns that."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(SUFFIX)


def pack(folder: Path, archives: Path) -> Path:
    """Packs a folder into an archive of its name; returns that."""
    archives.mkdir(parents=True, exist_ok=True)
    archive = archives / f"{folder.name}{SUFFIX}"
    # In the order of the names inside, which does not depend on the system's separator.
    files = sorted((path.relative_to(folder.parent).as_posix(), path) for path in folder.rglob("*") if path.is_file())
    with tarfile.open(archive, "w:xz", format=tarfile.PAX_FORMAT, preset=9) as packed:
        for name, path in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = path.stat().st_size, 0o644
            with path.open("rb") as source:
                packed.addfile(entry, source)
    return archive


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    names = sorted(path.name.removesuffix(SUFFIX) for path in ARCHIVES.glob(f"*{SUFFIX}"))
    command = commands.add_parser("unpack", help="write the files of an archive into FOLDER/NAME")
    command.add_argument("name", choices=names)
    command.add_argument("folder", type=Path)
    command = commands.add_parser("pack", help="write a folder's archive")
    command.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "unpack":
        print(unpack(ARCHIVES / f"{options.name}{SUFFIX}", options.folder))
    else:
        print(pack(options.folder.resolve(), ARCHIVES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
