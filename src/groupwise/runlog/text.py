"""Text that a model, a data set or a verifier wrote, made safe to print in a terminal.

Contract: what comes out holds no escape sequence, no control code but, where asked for, newlines and tabs, nothing that
reorders what stands beside it, and nothing that a UTF-8 stream cannot encode. It does not escape for HTML or CSV.
"""

from __future__ import annotations

import re

# Whole sequences go first, so that their parameters do not stay behind as litter, in the 7-bit form (ESC and a letter)
# and in the 8-bit one (C1). Each repetition stops where another sequence opens: linear time on any input.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, screen
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS: titles, clipboard
    r"|\x1b[ -/]*[0-~]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_LINE_BREAKS = re.compile(r"\r\n?|\u2028|\u2029|\x85")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def printable(text: str, keep_newlines: bool = False) -> str:
    """`text` without anything that a terminal would obey. Newlines and tabs become spaces unless they are kept."""
    text = _SEQUENCES.sub("", text)
    text = _LINE_BREAKS.sub("\n", text)
    text = _CONTROLS.sub("", text)
    text = _SURROGATES.sub("\ufffd", text)
    return text if keep_newlines else text.replace("\n", " ").replace("\t", " ")
