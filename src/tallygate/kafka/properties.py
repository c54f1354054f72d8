"""Java's .properties files, which are Latin-1 and have escapes of their own."""

from collections.abc import Mapping


def java_properties(properties: Mapping[str, str]) -> str:
    """The text of a file: backslashes, line breaks (as in certificates) and what is not ASCII
    are escaped; characters beyond the first plane become a pair of escapes, as Java has them."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in properties.items())


def _escaped(value: str) -> str:
    plain = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    pairs = plain.encode("utf-16-be")
    units = (int.from_bytes(pairs[i : i + 2], "big") for i in range(0, len(pairs), 2))
    return "".join(chr(unit) if unit < 128 else f"\\u{unit:04x}" for unit in units)
