"""What is asked of other libraries before a command that loads a model."""

from __future__ import annotations


def quiet_libraries() -> None:
    """Our progress display is the one that is shown; loading bars of others would break it up."""
    from transformers.utils import logging

    logging.disable_progress_bar()
