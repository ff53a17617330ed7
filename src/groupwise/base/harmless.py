"""Make untrusted text harmless: in a terminal, in HTML, in a block of JSON in a page, in a spreadsheet.

Models, data sets, verifiers and recipes write text that cannot be trusted. Pages and files show it unchanged,
with invisible characters (control codes, escapes, marks that reorder text) as their code point. In a terminal they are
removed: `printable` leaves no escape sequence, no control code (newlines and tabs are optional), nothing that
reorders text and nothing that UTF-8 cannot encode.
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
# Whole sequences are removed first, so that their parameters do not stay behind, in the 7-bit form (ESC and a letter)
# and in the 8-bit form (C1). Each repetition stops where another sequence opens: linear time on any input.
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
    """Return `text` with ⟨U+001B⟩ in place of an invisible character. The result can be encoded as UTF-8."""
    return _UNSEEN.sub(lambda match: f"\u27e8U+{ord(match[0]):04X}\u27e9", text.replace("\r\n", "\n"))


def escape(text: str) -> str:
    """Return `text` for HTML, inside an element or a quoted attribute."""
    return html.escape(visible(text), quote=True)


def json_block(value: Any) -> str:
    """Return JSON for an inert element of a page. It has no "<", which could end the element or open a comment.

    Characters that are invisible or cannot be encoded as UTF-8 are escaped.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text).replace("<", "\\u003c")


def policy_hash(text: str) -> str:
    """Return the name of an inline script or style in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def cell(value: object) -> object:
    """Return `value` for a CSV file: text that a spreadsheet would read as a formula gets a leading quote."""
    if isinstance(value, str):
        text = visible(value)
        return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
    return value


def printable(text: str, keep_newlines: bool = False) -> str:
    """Return `text` without anything that a terminal would obey. Newlines and tabs become spaces unless kept."""
    text = _SEQUENCES.sub("", text)
    text = _LINE_BREAKS.sub("\n", text)
    text = _CONTROLS.sub("", text)
    text = _SURROGATES.sub("\ufffd", text)
    return text if keep_newlines else text.replace("\n", " ").replace("\t", " ")
