"""YAML as it is written today, and where something stands in a file of it."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

__all__ = ["Loader", "line_at", "line_of"]


class Loader(yaml.SafeLoader):
    """YAML 1.2 has two booleans; for 1.1, which PyYAML reads, `on` is a third one, and no key."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag != "tag:yaml.org,2002:bool"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def line_of(file: Path, path: Sequence[Any]) -> int | None:
    try:
        return line_at(yaml.compose(file.read_text(), Loader=Loader), path)
    except (OSError, yaml.YAMLError):
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
