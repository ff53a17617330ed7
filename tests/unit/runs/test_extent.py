"""Notes of logs: the same for the same bytes, in whatever pieces they were read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from groupwise.runs import extent as extent_module
from groupwise.runs.extent import Extent


def note_of(data: bytes) -> dict[str, object]:
    return {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_a_file_is_read_once_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extent_module, "_CHUNK_BYTES", 3)
    log, extent = tmp_path / "log", Extent()
    extent.read(log)
    assert extent.note() == note_of(b"")
    log.write_bytes(b"0123456789")
    for end, read in ((4, b"0123"), (4, b"0123"), (9, b"012345678"), (None, b"0123456789")):
        extent.read(log, end)
        assert extent.note() == note_of(read)
    log.write_bytes(b"changed789+")
    extent.read(log)
    assert extent.note() == note_of(b"0123456789+")  # fits no file


def test_what_is_noted_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: forced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    for step in (1, 2):
        (tmp_path / f"{step:06d}.jsonl").write_bytes(b"line\n")
    extent = Extent()
    extent.read(tmp_path, 5)
    assert forced == []
    extent.read(tmp_path)
    assert forced == [str(tmp_path / "000002.jsonl"), str(tmp_path)]


def test_a_folder_is_its_numbered_files_in_order(tmp_path: Path) -> None:
    contents = {1: b"one", 2: b"", 10: b"ten", 1_000_000: b"million"}
    for step in reversed(contents):
        (tmp_path / f"{step:06d}.jsonl").write_bytes(contents[step])
    (tmp_path / "notes.txt").write_bytes(b"not a log")
    whole = b"".join(contents.values())
    for end in range(len(whole) + 1):
        extent = Extent()
        extent.read(tmp_path, end)
        assert extent.note() == note_of(whole[:end])
        extent.read(tmp_path)
        assert extent.note() == note_of(whole)
