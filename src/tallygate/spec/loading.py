"""Reading a pipeline from a YAML file, and saying what is wrong with it.

What is wrong is said before anything starts, with the place in the file and the nearest name that
would be right. `${NAME}` and `${NAME:default}` in a YAML text stand for the environment.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tallygate.errors import ConfigError
from tallygate.settings import nearest
from tallygate.spec.part import PlacedError
from tallygate.spec.pipeline import DeadLetters, PipelineSpec
from tallygate.spec.places import line_at, read_yaml
from tallygate.spec.sinks import Console, Delta, Foreach, KafkaSink, Memory, Parquet, Postgres
from tallygate.spec.sources import Files, Kafka, Rate, Socket
from tallygate.spec.steps import Join, Pivot, Static, Step, Window

_SINKS = (Postgres, KafkaSink, Parquet, Delta, Foreach, Console, Memory)
_SOURCES = (Kafka, Files, Socket, Rate)
PARTS: dict[str, list[type[BaseModel]]] = {
    "source": [*_SOURCES],
    "sources": [*_SOURCES],
    "sink": [*_SINKS],
    "dead_letters": [DeadLetters],
    "transform": [Step],
    "static": [Static],
    "window": [Window],
    "pivot": [Pivot],
    "join": [Join],
}
LONGEST = 1_000
"""Characters of a sentence: it may repeat what the file says."""
TAGS = {
    *(each.__name__.lower() for each in (*_SINKS, *_SOURCES)),
    *("text", "steps", "function"),
}
"""What pydantic puts into a place to say which kind of part it tried."""


def load_spec(path: Path) -> PipelineSpec:
    """Read a pipeline from a YAML file."""
    document, nodes = read_yaml(path)
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is not a pipeline: it must say name, source and sink.")
    document = _expanded(document, os.environ, path)
    spec = validated(PipelineSpec, document, str(path), nodes)
    spec._file = path
    return spec


def validated(
    model: type[PipelineSpec], fields: Mapping[str, Any], where: str, nodes: Any = None
) -> PipelineSpec:
    """The model of these fields, or the first thing wrong with them, in one sentence."""
    try:
        return model(**fields)
    except ValidationError as error:
        problems = error.errors()
        there = [each for each in problems if each["type"] != "missing"]
        problem = (there or problems)[0]  # a name that is wrong explains one that is missing
        path = [*_without_tags(problem["loc"]), *_place_within(problem)]
        line = line_at(nodes, path)
        place = f"{where}{f', line {line}' if line else ''}"
        sentence = _sentence(problem, path, model)
        if len(sentence) > LONGEST:
            sentence = f"{sentence[:LONGEST]} …"
        raise ConfigError(f"{place}: {sentence}") from None


def _place_within(problem: Any) -> Sequence[Any]:
    """The path within the part that raised the error, if the error names one."""
    raised = problem.get("ctx", {}).get("error")
    return raised.place if isinstance(raised, PlacedError) else ()


def _without_tags(location: Sequence[Any]) -> list[Any]:
    """The place as it is in the file. A tag follows what it is a kind of; elsewhere the same word
    is a field's name."""
    path: list[Any] = []
    tagged = False
    for part in location:
        after = path[-1:] in (["source"], ["sink"], ["transform"]) or path[-2:-1] == ["sources"]
        if part in TAGS and after and not tagged:
            tagged = True
            continue
        path.append(part)
        tagged = False
    return path


def _expanded(value: Any, environment: Mapping[str, str], path: Path) -> Any:
    if isinstance(value, dict):
        return {key: _expanded(each, environment, path) for key, each in value.items()}
    if isinstance(value, list):
        return [_expanded(each, environment, path) for each in value]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        if name in environment:
            return environment[name]
        if default is None:
            raise ConfigError(
                f"{path} uses ${{{name}}}, which the environment does not set; set it, or give a "
                f"default as ${{{name}:default}}."
            )
        return default

    return re.sub(r"\$\{(?P<name>[A-Za-z_]\w*)(?::(?P<default>[^}]*))?\}", replace, value)


def _sentence(problem: Any, path: Sequence[Any], model: type[BaseModel]) -> str:
    name = ".".join(str(part) for part in path) or "the pipeline"
    if problem["type"] == "extra_forbidden":
        close = nearest(str(path[-1]), {*_fields(model, path[:-1])} - {path[-1]})
        known = ", ".join(_fields(model, problem["loc"][:-1]))
        return f"{name} is not a field{f'; there are {known}' if close == '.' else ''}{close}"
    if problem["type"] == "missing":
        return f"{name} is missing."
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{name} {message[0].lower()}{message[1:].rstrip('.')}."


def _fields(model: type[BaseModel], path: Sequence[Any]) -> list[str]:
    """The names that are possible at a place of the file."""
    models: list[type[BaseModel]] = [model]
    for part in path:
        if isinstance(part, int):
            continue
        if part in TAGS and len(models) > 1:
            models = [each for each in models if each.__name__.lower().removesuffix("sink") == part]
        models = PARTS.get(str(part)) or models
    return [field.alias or name for m in models for name, field in m.model_fields.items()]
