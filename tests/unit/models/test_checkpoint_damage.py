"""Files that are not what was written: noticed, named, and passed over."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import groupwise.models.checkpoint_store as checkpoint_module
from groupwise.models.checkpoint_store import FORMAT, CheckpointError, CheckpointStore, checkpoint_name
from tests.unit.models.test_checkpoint_store import loaded_step, save


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 0x10
    path.write_bytes(data)


def turn_into_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [truncate, empty, flip, os.unlink, turn_into_folder])
@pytest.mark.parametrize("file", ["policy.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
def test_a_damaged_checkpoint_is_passed_over_and_reported(
    tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    told: list[tuple[str, str]] = []
    store = CheckpointStore(tmp_path, keep_last=3, on_skip=lambda path, reason: told.append((path.name, reason)))
    save(store, 1)
    damaged = save(store, 2)
    damage(damaged / file)
    assert loaded_step(store, store.newest_valid()) == 1
    assert [name for name, _ in told] == [checkpoint_name(2)]
    assert file in told[0][1] or "manifest.json" in told[0][1]
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        store.load(damaged)


def test_files_are_hashed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_module, "PIECE_BYTES", 100)
    store = CheckpointStore(tmp_path, keep_last=3)
    path = save(store, 1)
    file = path / "policy.safetensors"
    data = file.read_bytes()
    assert len(data) > 200
    pieces = [data[start : start + 100] for start in range(0, len(data), 100)]
    listed = json.loads((path / "manifest.json").read_bytes())["files"][file.name]
    slowly = hashlib.sha256(b"".join(hashlib.sha256(piece).digest() for piece in pieces)).hexdigest()
    assert listed == {"sha256_of_pieces": slowly, "size_bytes": len(data)}
    assert store.verify(path) is None
    for place in range(0, len(data), 37):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert store.verify(path) == "policy.safetensors was changed after it was written: its sha256 differs"
    file.write_bytes(b"".join([pieces[1], pieces[0], *pieces[2:]]))
    assert store.verify(path) == "policy.safetensors was changed after it was written: its sha256 differs"


def test_every_single_flipped_byte_of_the_manifest_is_noticed_or_harmless(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=3)
    path = save(store, 1)
    manifest = (path / "manifest.json").read_bytes()
    meaning = json.loads(manifest)
    for position in range(len(manifest)):
        changed = bytearray(manifest)
        changed[position] ^= 0x01
        (path / "manifest.json").write_bytes(changed)
        reason = store.verify(path)
        assert reason is not None or json.loads(changed) == meaning, position


@pytest.mark.parametrize(
    "manifest",
    [[], {}, {"format": FORMAT + 1, "files": {}}, {"format": FORMAT, "files": []}, {"format": FORMAT, "files": {}},
     {"format": FORMAT, "files": {"state.json": 3}}, {"format": FORMAT, "files": {"state.json": {}, "../../x": {}}}],
)  # fmt: skip
def test_a_manifest_that_makes_no_sense(tmp_path: Path, manifest: Any) -> None:
    store = CheckpointStore(tmp_path, keep_last=3)
    path = save(store, 1)
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert store.verify(path) is not None
    assert store.newest_valid() is None
