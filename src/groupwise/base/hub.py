"""Names on the Hugging Face hub, and reading them without a network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from groupwise.base.outside import local_path

ANSWER_S = 3.0
"""How long the hub may take to answer before the local cache is read alone."""

_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_FILE_SUFFIXES = (".csv", ".gguf", ".gz", ".json", ".jsonl", ".parquet", ".safetensors", ".toml", ".tsv", ".txt")


def is_hub_name(name: str) -> bool:
    """Return whether a name can be one on the hub: `owner/name`, or `name` alone, and nothing that is a file's."""
    return _NAME.fullmatch(name) is not None and Path(name).suffix.lower() not in _FILE_SUFFIXES


@contextmanager
def hub_or_cache(name: str) -> Iterator[None]:
    """Read `name` from the local cache alone, as with HF_HUB_OFFLINE=1, if the hub does not answer.

    The client library would retry each file for half a minute, also a file that is in the cache. Nothing changes for
    local files, and where the hub answers. Its progress bars are off, because they would break up other displays.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()

    was_offline = constants.HF_HUB_OFFLINE
    if not was_offline and is_hub_name(name) and not local_path(name).exists():
        constants.HF_HUB_OFFLINE = not _answers(constants.ENDPOINT)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = was_offline


def _answers(address: str) -> bool:
    from huggingface_hub import get_session

    try:
        # The library's own session: it knows about proxies and certificates.
        get_session().head(address, timeout=ANSWER_S)
    except Exception:  # noqa: BLE001 -- the exceptions of its HTTP client, which changed between versions
        return False
    return True
