"""Text of unknown origin on its way to a terminal, which obeys what is in it.

A record, a name or an error's message may hold sequences that move the cursor, set the window's
title or reverse what is read. They are shown as escapes, as `\\x1b`, and tabs are left. What a
program reads (JSON, YAML, `-o raw`) is never changed.
"""

import re

# C0 without tab, DEL, C1; separators of lines; what turns the direction of text; half characters,
# which no encoding takes.
_ODD = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str, *, lines: bool = False) -> str:
    """The text with control characters as escapes; with `lines` it may have several lines."""
    if lines:
        return "\n".join(map(printable, text.split("\n")))
    return _ODD.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
