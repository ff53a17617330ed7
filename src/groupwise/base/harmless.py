"""Make foreign text harmless: for a terminal, for HTML, for a block of JSON in a page, for a spreadsheet.

Models, data sets, verifiers and recipes write text that is not to be trusted. For pages and files it is kept as it is,
and characters that a reader would not see (control codes, escapes, marks that reorder text) are shown as their code
point. For a terminal they are removed: `printable` leaves no escape sequence, no control code (newlines and tabs where
asked for), nothing that reorders text and nothing that UTF-8 cannot encode.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from typing import Any

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufff9-\ufffb]"
)
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
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def visible(text: str) -> str:
    """`text` with ⟨U+001B⟩ where a reader would see nothing. What comes out can be written as UTF-8."""
    return _UNSEEN.sub(lambda match: f"\u27e8U+{ord(match[0]):04X}\u27e9", text.replace("\r\n", "\n"))


def escape(text: str) -> str:
    """For HTML, inside an element or a quoted attribute."""
    return html.escape(visible(text), quote=True)


def json_block(value: Any) -> str:
    """JSON for an inert element of a page. Without "<" nothing in it can end the element or open a comment.

    What cannot be seen or cannot be written as UTF-8 travels as an escape.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text).replace("<", "\\u003c")


def policy_hash(text: str) -> str:
    """How a content policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def cell(value: object) -> object:
    """For a CSV file: a text that a spreadsheet would take for a formula gets a quote in front."""
    if isinstance(value, str):
        text = visible(value)
        return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
    return value


def printable(text: str, keep_newlines: bool = False) -> str:
    """`text` without anything that a terminal would obey. Newlines and tabs become spaces unless they are kept."""
    text = _SEQUENCES.sub("", text)
    text = _LINE_BREAKS.sub("\n", text)
    text = _CONTROLS.sub("", text)
    text = _SURROGATES.sub("\ufffd", text)
    return text if keep_newlines else text.replace("\n", " ").replace("\t", " ")
