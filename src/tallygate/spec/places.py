"""YAML as it is written today, and where something stands in a file of it.

A file may come from a pull request of an unknown author, so its cost is bounded before it is read:
its size, how deep it nests, and how much it holds with each alias counted as often as it is used.
Whatever else is wrong with it is an error that has its line.
"""

import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError
from yaml.reader import ReaderError

from tallygate.errors import ConfigError

LONGEST_FILE = 1_000_000
MOST_NODES = 10_000
DEEPEST = 50
LONGEST_NUMBER = 400
_TAG = "tag:yaml.org,2002:"
_KINDS = ("null", "bool", "int", "float", "str", "seq", "map")
_ODD = (ValueError, LookupError, ArithmeticError, AttributeError, TypeError)
"""What PyYAML's constructors raise for a text that is not of its tag, as in `!!int x`."""


class _RefusedError(ConstructorError):
    """YAML that is valid, and is not taken."""

    def __init__(self, problem: str, at: Any) -> None:
        super().__init__(None, None, problem, at.start_mark)


class _Loader(yaml.SafeLoader):
    """YAML 1.2 has two booleans; for 1.1, which PyYAML reads, `on` is a third one, and no key.
    A date stays the text that it is. A mapping's keys are texts."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        self._nodes += 1
        self._depth += 1
        if self._nodes > MOST_NODES:
            raise _RefusedError(f"holds more than {MOST_NODES:,} values", event)
        if self._depth > DEEPEST:
            raise _RefusedError(f"nests more than {DEEPEST} levels deep", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        kind = node.tag.removeprefix(_TAG)
        if kind in ("int", "float") and len(node.value) > LONGEST_NUMBER:
            raise _RefusedError(f"has a number of {len(node.value):,} characters", node)
        try:
            return super().construct_object(node, deep)
        except _ODD:
            text = node.value[:60] if isinstance(node, yaml.ScalarNode) else "a mapping"
            raise _RefusedError(f"has {text!r}, which is not of type {kind}", node) from None

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        if isinstance(node, yaml.MappingNode):
            self.flatten_mapping(node)
            return {self.key(key): self.construct_object(value, deep) for key, value in node.value}
        raise _RefusedError("has a value with the tag of a mapping that is none", node)

    def key(self, node: Any) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise _RefusedError("has a key that is not a text", node)
        return str(self.construct_object(node)) if node.tag == f"{_TAG}int" else str(node.value)

    def check(self, node: Any, sizes: dict[Any, tuple[int, int] | None]) -> tuple[int, int]:
        """How many nodes there are below one, aliases counted each time, and how many levels."""
        if node in sizes:
            known = sizes[node]
            if known is None:
                raise _RefusedError("holds itself, by an alias", node)
            return known
        sizes[node] = None
        parts: list[Any] = []
        if isinstance(node, yaml.MappingNode):
            self._check_keys(node)
            parts = [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            parts = node.value
        below = [self.check(part, sizes) for part in parts]
        count = 1 + sum(count for count, _ in below)
        depth = 1 + max((depth for _, depth in below), default=0)
        if count > MOST_NODES:
            raise _RefusedError(
                f"holds more than {MOST_NODES:,} values, with those of its aliases", node
            )
        if depth > DEEPEST:
            raise _RefusedError(f"nests more than {DEEPEST} levels deep, by its aliases", node)
        sizes[node] = count, depth
        return count, depth

    def _check_keys(self, node: yaml.MappingNode) -> None:
        keys: set[str] = set()
        for each, _ in node.value:
            key = self.key(each)
            if key in keys:
                raise _RefusedError(f"says {key[:60]!r} twice", each)
            keys.add(key)


_Loader.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix(_TAG) in _KINDS
}
_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern) for tag, pattern in pairs if tag not in (f"{_TAG}bool", f"{_TAG}timestamp")
    ]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    f"{_TAG}bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def read_yaml(path: Path) -> tuple[Any, Any]:
    """What a file of YAML says, and its nodes, which know their lines."""
    text = _text_of(path)
    loader = None
    try:
        loader = _Loader(text)
        nodes = loader.get_single_node()
        if nodes is None:
            return None, None
        loader.check(nodes, {})
        return loader.construct_document(nodes), nodes
    except _RefusedError as error:
        raise ConfigError(f"{path}{_line(error.problem_mark)} {error.problem}.") from error
    except ReaderError as error:
        line = f", line {text.count(chr(10), 0, error.position) + 1}"
        raise _invalid(path, line, f"the character {error.character:#x}") from error
    except yaml.MarkedYAMLError as error:
        line = _line(error.problem_mark or error.context_mark)
        raise _invalid(path, line, error.problem or "it cannot be parsed") from error
    except (*_ODD, RecursionError) as error:  # of its scanner, which knows how far it came
        line = _line(loader.get_mark() if loader else None)
        raise _invalid(path, line, f"it cannot be parsed ({type(error).__name__})") from error
    finally:
        if loader is not None:
            loader.dispose()


def _invalid(path: Path, line: str, reason: str) -> ConfigError:
    return ConfigError(f"{path}{line} is not valid YAML: {reason[:200]}.")


def _line(mark: Any) -> str:
    return f", line {mark.line + 1}" if mark else ""


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LONGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    if len(content) > LONGEST_FILE:
        raise ConfigError(f"{path} is not a pipeline: it has more than {LONGEST_FILE:,} bytes.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line} is not text: {error.reason}.") from error


def line_of(file: Path, path: Sequence[Any]) -> int | None:
    try:
        return line_at(read_yaml(file)[1], path)
    except ConfigError:
        return None


def line_at(nodes: Any, path: Sequence[Any]) -> int | None:
    """The line on which the value at `path` stands, or that of the last part there is."""
    if nodes is None:
        return None
    line = nodes.start_mark.line + 1
    for part in path:
        found = None
        for key, value in nodes.value if isinstance(nodes, yaml.MappingNode) else ():
            if key.value == str(part):
                found, line = value, key.start_mark.line + 1
        if isinstance(nodes, yaml.SequenceNode) and isinstance(part, int):
            found = nodes.value[part]
            line = found.start_mark.line + 1
        if found is None:
            break
        nodes = found
    return int(line)
