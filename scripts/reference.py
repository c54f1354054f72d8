"""Writes docs/cli.md from the commands themselves, docs/pipeline.schema.json from the model of a
pipeline and docs/examples.md from the examples; a test fails when one is out of date."""

import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import typer
import yaml

from tallygate import errors
from tallygate.cli import app
from tallygate.spec import PipelineSpec

SCHEMA = Path(__file__).parent.parent / "docs" / "pipeline.schema.json"
EXAMPLES = SCHEMA.parent / "examples.md"
TARGET = Path(__file__).parent.parent / "docs" / "cli.md"
HEAD = """# The command line

Results go to stdout, progress to stderr. `--debug`, anywhere on the line, shows the traceback of an
error. This page is written by `make docs`.

## Exit codes

| code | meaning |
|---|---|
{codes}
"""
OTHER_CODES = {
    0: "Done.",
    2: "The command line is wrong: an unknown flag, a missing argument. Of `audit` and `drill`: "
    "the verdict is unknown (and 1: invalid).",
    130: "Interrupted.",
}


def reference() -> str:
    codes = dict(OTHER_CODES)
    for name in errors.__all__:
        error = getattr(errors, name)
        codes[error.exit_code] = f"`{name}`: {_sentence(error)}"
    text = HEAD.format(codes="\n".join(f"| {code} | {codes[code]} |" for code in sorted(codes)))
    root = typer.main.get_command(app)
    return text + "".join(_command(command, path) for path, command in _walk(root, "tallygate"))


def _walk(command: Any, path: str) -> list[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        return [(path, command)]
    return [
        pair for name, below in command.commands.items() for pair in _walk(below, f"{path} {name}")
    ]


def _command(command: Any, path: str) -> str:
    arguments = [p.metavar for p in command.params if p.param_type_name == "argument"]
    lines = [f"\n## `{' '.join([path, *arguments])}`\n", _sentence(command.callback), ""]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    if options:
        lines += ["| option | meaning |", "|---|---|"]
        for option in options:
            names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
            lines.append(f"| {names} | {option.help or ''} |")
    return "\n".join(lines) + "\n"


def _sentence(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def schema() -> str:
    """The fields of a pipeline file, as JSON Schema."""
    return json.dumps(PipelineSpec.model_json_schema(by_alias=True), indent=2) + "\n"


EXAMPLES_HEAD = """# Examples

Each is one file with its own data. It starts a stack of its own, runs its pipelines into
PostgreSQL and prints what they gave:

```text
.venv/bin/python examples/payments.py
```

A test runs all of them into every sink that fits, kills the driver once for each, and compares
the result with what plain Python makes of the same records; what is printed below is that. This
page is written by `make docs`.
"""


def examples() -> str:
    folder = SCHEMA.parent.parent / "examples"
    sys.path.insert(0, str(folder))
    stage = importlib.import_module("stage")
    text = EXAMPLES_HEAD
    for name in ("word_count", "beach_sightings", "weather_stations", "payments"):
        module = importlib.import_module(name)
        lines, usage = (module.__doc__ or "").strip().split("\n\n")
        text += f"\n## [{name}.py](../examples/{name}.py)\n\n{lines}\n\n```text\n{usage}\n```\n"
        for example in module.EXAMPLES:
            transform = example.fields["transform"]
            written = yaml.safe_dump(_tidy(transform), sort_keys=False, width=90).rstrip()
            shown = stage.shown(example, example.expected()).rstrip()
            text += f"\n```yaml\n{written}\n```\n\n```text\n{shown}\n```\n"
        for said, printed in getattr(module, "PRINTED", {}).items():
            text += f"\n{said}\n\n```text\n{printed()}\n```\n"
    return text


def _tidy(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, dict):
        return {key: _tidy(each) for key, each in value.items()}
    return [_tidy(each) for each in value] if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    EXAMPLES.write_text(examples())
    TARGET.write_text(reference())
    SCHEMA.write_text(schema())
