"""Checkpoints that survive a kill, a full disk and a flipped bit: a damaged one is never resumed from.

    save:  .tmp-NAME/ ← tensors, state.json   fsync each
                      ← manifest.json (hash and size of each)   fsync, fsync the folder
           rename to NAME/, fsync the parent, then prune
    load:  the newest folder whose files all match their manifest

Contract: at any moment of a save, the newest checkpoint that verifies is the previous one or the complete new one. A
failed save raises `CheckpointError` and leaves existing checkpoints unchanged. One process writes (the run's lock
ensures that); any number may read at the same time. Files are safetensors and JSON, so loading runs no code. What a
checkpoint contains is up to the trainer.

Names: `step-000012` is the run after step 12. `step-000012-update-003` is inside step 12, after 3 of its updates: newer
than `step-000011`, older than `step-000012`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from groupwise.base.outside import file_bytes, file_json, json_value
from groupwise.runs.files import fsync_path, write_atomic

MANIFEST = "manifest.json"
STATE = "state.json"
TAGS = "tags.json"
FORMAT = 2
"""Version of the manifest. A reader refuses other versions."""
PIECE_BYTES = 16 << 20
"""Piece of a file that one thread hashes. A single core would be slower than the disk."""
HASHING_THREADS = 8
STAGE_BYTES = 64 << 20
"""Size of each of two pinned buffers. Copying from a GPU through them takes a fifth of the time of copying to ordinary
memory (docs/lab-log.md)."""

_NAME = re.compile(r"step-(\d{6,})(?:-update-(\d{3,}))?")
_PART = re.compile(r"[A-Za-z0-9._-]+")
_TEMPORARY = ".tmp-"
_REPLACED = ".replaced-"
"""Prefix of a checkpoint that is being replaced by one of the same name. It counts until the new one is in place."""


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read. The message names the path and the cause."""


def checkpoint_name(step: int, update: int | None = None) -> str:
    """Return the name of a checkpoint after `step`, or inside it after `update` of its updates."""
    return f"step-{step:06d}" if update is None else f"step-{step:06d}-update-{update:03d}"


def checkpoint_order(name: str) -> tuple[int, bool, int]:
    """Return a key that sorts names from old to new. Raise a ValueError for any other name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not the name of a checkpoint; make it with checkpoint_name(step, update)")
    step, update = match.groups()
    return int(step), update is None, int(update or 0)


def is_checkpoint_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


class CheckpointStore:
    def __init__(self, root: Path, keep_last: int, on_skip: Callable[[Path, str], None] | None = None) -> None:
        """`on_skip(path, reason)` is called for checkpoints that do not verify or cannot be removed."""
        if keep_last < 1:
            raise ValueError(f"keep_last = {keep_last}: keep at least 1, or a crash loses the run")
        self.root = Path(root)
        self._keep_last = keep_last
        self._on_skip = on_skip or (lambda path, reason: None)
        self.passed_over: dict[str, str] = {}
        """Why `newest_valid` did not choose a newer checkpoint, by name."""

    def save(
        self,
        name: str,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        protected: Collection[str] = (),
    ) -> Path:
        """Write `tensors[k]` to k.safetensors and `state` to state.json, then prune all but the newest `keep_last`.

        Tagged names and those in `protected` are never pruned. A checkpoint of the same name is replaced.
        """
        checkpoint_order(name)
        for part in tensors:
            if not _PART.fullmatch(part):
                raise ValueError(f"{part!r} cannot be the name of a file of tensors")
        state_bytes = _encode_state(state)
        temporary = self.root / f"{_TEMPORARY}{name}"
        path = self.root / name
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._settle()
            os.mkdir(temporary)
            _write_files(temporary, tensors, state_bytes)
            self._put_in_place(temporary, path)
        except (OSError, SafetensorError) as error:
            # A kill leaves the folder behind, and the next save removes it.
            shutil.rmtree(temporary, ignore_errors=True)
            raise CheckpointError(
                f"could not write the checkpoint {path}: {error}. Older checkpoints are untouched; "
                "free space or fix the folder, then resume the run"
            ) from error
        self._prune(name, protected)
        return path

    def newest_valid(self, saved: str = "") -> Path | None:
        """Return the newest checkpoint that verifies, reading every byte. Newer, damaged ones go to `on_skip`.

        `saved`: the newest that was ever saved. It goes there too if the folder has older ones alone.
        """
        paths = self._candidates()
        if saved and paths and checkpoint_order(paths[-1].name.removeprefix(_REPLACED)) < checkpoint_order(saved):
            self._pass_over(self.root / saved, "it is missing")
        for path in reversed(paths):
            reason = self.verify(path)
            if reason is None:
                return path
            self._pass_over(path, reason)
        return None

    def _pass_over(self, path: Path, reason: str) -> None:
        self.passed_over[path.name] = reason
        self._on_skip(path, reason)

    def verify(self, path: Path) -> str | None:
        """Return why this checkpoint cannot be trusted, or None if all files match its manifest."""
        try:
            files = _read_manifest(path)
            for name, entry in files.items():
                file = path / name
                size = file.stat().st_size
                if size != entry["size_bytes"]:
                    return f"{name} has {size} bytes, but its manifest says {entry['size_bytes']}"
                if _hash_of(file) != entry["sha256_of_pieces"]:
                    return f"{name} was changed after it was written: its sha256 differs"
        except FileNotFoundError as error:
            return f"{Path(error.filename).name} is missing"
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"{MANIFEST} or a file in it cannot be read: {error!r}"
        return None

    def load(self, path: Path, check: bool = True) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Return (tensors on the CPU, state). Use `check=False` only right after `newest_valid`."""
        reason = self.verify(path) if check else None
        if reason is not None:
            raise CheckpointError(f"checkpoint {path} cannot be loaded: {reason}")
        try:
            parts = [Path(name) for name in _read_manifest(path) if name.endswith(".safetensors")]
            tensors = {part.stem: load_file(path / part, device="cpu") for part in parts}
            state = json_value(file_bytes(path / STATE))
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"checkpoint {path} cannot be loaded: {error}") from error
        return tensors, state

    def names(self) -> list[str]:
        """Return the names of all checkpoints, valid or not, from old to new."""
        return [path.name for path in self._candidates() if not path.name.startswith(_REPLACED)]

    def rewind(self, name: str) -> Path:
        """Remove the checkpoints after `name` and their tags, so a later crash cannot jump ahead to them.

        Called by the writing process before its first save. Return the path of `name`, which has changed since
        `newest_valid` if a kill interrupted a replacement between its two renames.
        """
        name = name.removeprefix(_REPLACED)
        newest_kept = checkpoint_order(name)
        try:
            self._settle()
        except OSError as error:
            raise CheckpointError(f"could not tidy {self.root}: {error}") from error
        tags = {tag: tagged for tag, tagged in (self._tags() or {}).items() if checkpoint_order(tagged) <= newest_kept}
        if tags != self._tags():
            self._write_tags(tags)
        for path in self._candidates():
            if checkpoint_order(path.name.removeprefix(_REPLACED)) > newest_kept:
                self._remove(path)
        return self.root / name

    def mark(self, name: str, tag: str) -> None:
        """Move `tag` ("best") to this checkpoint. A tagged checkpoint is not pruned."""
        if not (self.root / name).is_dir():
            raise CheckpointError(f"there is no checkpoint {self.root / name} to tag as {tag!r}")
        self._write_tags({**(self._tags() or {}), tag: name})

    def tagged(self, tag: str) -> Path | None:
        """Return the checkpoint with this tag, not verified; None if there is none."""
        name = (self._tags() or {}).get(tag)
        return self.root / name if name is not None and (self.root / name).is_dir() else None

    def _candidates(self) -> list[Path]:
        """Return all checkpoints from old to new. One that is being replaced comes before its replacement."""
        try:
            paths = list(self.root.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise CheckpointError(f"cannot list {self.root}: {error}") from error
        names = {path: path.name.removeprefix(_REPLACED) for path in paths}
        found = [path for path, name in names.items() if _NAME.fullmatch(name)]
        return sorted(found, key=lambda path: (checkpoint_order(names[path]), path.name == names[path]))

    def _put_in_place(self, temporary: Path, path: Path) -> None:
        aside = self.root / f"{_REPLACED}{path.name}"
        if path.exists():
            # A folder cannot be renamed over a full one. Between the two renames, `newest_valid` finds the one set
            # aside.
            os.rename(path, aside)
        try:
            os.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.rename(aside, path)
            raise
        fsync_path(self.root)
        if aside.exists():
            self._remove(aside)

    def _settle(self) -> None:
        """Clean up after a killed save: partial folders, and a checkpoint that was set aside."""
        for path in sorted(self.root.iterdir()):
            if path.name.startswith(_TEMPORARY):
                shutil.rmtree(path)
            elif path.name.startswith(_REPLACED):
                original = self.root / path.name.removeprefix(_REPLACED)
                if original.exists():
                    self._remove(path)
                else:
                    os.rename(path, original)

    def _prune(self, saved: str, protected: Collection[str]) -> None:
        tags = self._tags()
        if tags is None:
            return  # The tags cannot be read: keep everything rather than lose the best checkpoint.
        # Checkpoints after `saved` are from before a rewind and must not push out newer ones.
        names = [name for name in self.names() if checkpoint_order(name) <= checkpoint_order(saved)]
        for name in names[: -self._keep_last]:
            if name not in protected and name not in tags.values():
                self._remove(self.root / name)

    def _remove(self, path: Path) -> None:
        # Renamed first, so a kill during removal leaves nothing that looks like a damaged checkpoint.
        trash = self.root / f"{_TEMPORARY}removed-{path.name.removeprefix('.')}"
        try:
            os.rename(path, trash)
            shutil.rmtree(trash)
        except OSError as error:
            self._on_skip(path, f"could not be removed: {error}")

    def _tags(self) -> dict[str, str] | None:
        """Return the tags; None if the file exists but cannot be read."""
        path = self.root / TAGS
        try:
            tags = {str(tag): str(name) for tag, name in file_json(path).items()}
            for name in tags.values():
                checkpoint_order(name)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, AttributeError) as error:
            self._on_skip(path, f"cannot be read: {error!r}")
            return None
        return tags

    def _write_tags(self, tags: Mapping[str, str]) -> None:
        path = self.root / TAGS
        try:
            write_atomic(path, [json.dumps(tags, indent=1).encode("ascii")])
        except OSError as error:
            raise CheckpointError(f"could not write {path}: {error}") from error


class CheckpointReader(CheckpointStore):
    """The store on ranks that do not write: saving does nothing."""

    def save(self, *arguments: Any, **named: Any) -> Path:
        return self.root

    def newest_valid(self, saved: str = "") -> Path | None:
        return None  # the writing rank decides and shares its choice

    def mark(self, name: str, tag: str) -> None:
        pass


def _write_files(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], state_bytes: bytes) -> None:
    pieces: dict[str, list[Future[bytes]]] = {}
    # Hashing runs while the disk writes.
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        for part, named in tensors.items():
            path = folder / f"{part}.safetensors"
            save_file(_separate(named), path)
            pieces[path.name] = _hash_pieces(path, pool)
            fsync_path(path)
        _write_bytes(folder / STATE, state_bytes)
        pieces[STATE] = _hash_pieces(folder / STATE, pool)
    files = {
        name: {"sha256_of_pieces": _joined(pieces[name]), "size_bytes": (folder / name).stat().st_size}
        for name in sorted(pieces)
    }
    _write_bytes(folder / MANIFEST, json.dumps({"format": FORMAT, "files": files}, indent=1).encode("ascii"))
    fsync_path(folder)


def _write_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    fsync_path(path)


def _separate(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as safetensors needs them: on the CPU, contiguous, without shared memory (tied weights)."""
    separate = {}
    storages = set()
    for name, plain in zip(named, _on_cpu([tensor.detach() for tensor in named.values()]), strict=True):
        storage = plain.untyped_storage().data_ptr()
        if storage in storages:
            plain = plain.clone(memory_format=torch.contiguous_format)
        storages.add(storage)
        separate[name] = plain
    return separate


def _on_cpu(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return contiguous tensors in host memory, copied from the GPU where necessary."""
    copies = [
        torch.empty(tensor.shape, dtype=tensor.dtype) if tensor.is_cuda else tensor.contiguous() for tensor in tensors
    ]
    moves = [(tensor, copy) for tensor, copy in zip(tensors, copies, strict=True) if tensor.is_cuda]
    if moves:
        stages = [torch.empty(STAGE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        _copy_through(stages, moves)
    return copies


def _copy_through(stages: Sequence[Tensor], moves: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy through two buffers: one is emptied while the other fills."""
    filled: tuple[Tensor, Tensor, torch.cuda.Event | None] | None = None
    for source, target in moves:
        both = (_bytes_of(source.contiguous()), _bytes_of(target))
        for ours, theirs in zip(*(flat.split(len(stages[0])) for flat in both), strict=True):
            stage = stages[0][: len(ours)].copy_(ours, non_blocking=True)
            arrived = torch.cuda.current_stream(ours.device).record_event() if ours.is_cuda else None
            if filled is not None:
                _empty(*filled)
            filled, stages = (stage, theirs, arrived), stages[::-1]
    if filled is not None:
        _empty(*filled)


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


def _empty(stage: Tensor, target: Tensor, arrived: torch.cuda.Event | None) -> None:
    if arrived is not None:
        arrived.synchronize()
    target.copy_(stage)


def _encode_state(state: Mapping[str, Any]) -> bytes:
    """Encode as JSON that Python reads back unchanged, NaN and infinities included. Tuples become lists."""
    _check_keys(dict(state), "state")
    try:
        return json.dumps(dict(state), ensure_ascii=True).encode("ascii")
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the state of a checkpoint must be JSON values: {error}") from error


def _check_keys(value: Any, where: str) -> None:
    # json.dumps would silently turn the key 1 into "1", which a resumed run would not find.
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise CheckpointError(f"{where} has the key {key!r}: the keys of a checkpoint's state must be strings")
            _check_keys(item, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            if isinstance(item, (dict, list, tuple)):
                _check_keys(item, f"{where}.{index}")


def _read_manifest(path: Path) -> dict[str, dict[str, Any]]:
    manifest = file_json(path / MANIFEST)
    if manifest["format"] != FORMAT:
        raise ValueError(f"format {manifest['format']!r} is unknown; this version reads {FORMAT}")
    files: dict[str, dict[str, Any]] = manifest["files"]
    if not isinstance(files, dict) or STATE not in files:
        raise ValueError(f"it does not list {STATE}")
    for name in files:
        # A manifest is not trusted: it may only name files of its own folder.
        if not _PART.fullmatch(name):
            raise ValueError(f"it lists {name!r}, which is not a plain file name")
    return files


def _hash_of(path: Path) -> str:
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        return _joined(_hash_pieces(path, pool))


def _hash_pieces(path: Path, pool: ThreadPoolExecutor) -> list[Future[bytes]]:
    return [pool.submit(_hash_piece, path, start) for start in range(0, path.stat().st_size, PIECE_BYTES)]


def _hash_piece(path: Path, start: int) -> bytes:
    found = hashlib.sha256()
    buffer = memoryview(bytearray(256 << 10))
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        left = PIECE_BYTES
        while left and (count := file.readinto(buffer[:left])):
            found.update(buffer[:count])
            left -= count
    return found.digest()


def _joined(pieces: Sequence[Future[bytes]]) -> str:
    return hashlib.sha256(b"".join(piece.result() for piece in pieces)).hexdigest()
