"""Python objects that a pipeline names in its text, as `module:name`."""

import importlib
import os
import re
import sys
from pathlib import Path
from typing import Any

from tallygate.errors import ConfigError

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_reference(text: str) -> bool:
    return _REFERENCE.fullmatch(text.strip()) is not None


def look_in(folder: Path) -> None:
    """Look for modules there too: in this process, and in those that it starts from now on, as the
    workers of a Spark session are."""
    place = str(folder)
    if place not in sys.path:
        sys.path.append(place)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if place not in inherited:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*inherited, place]))


def referred(text: str) -> Any:
    """What `module:name` names; it must be callable."""
    module, _, name = text.strip().partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # whatever a module of the user's does when it is imported
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{text!r} cannot be imported: {said}.") from error
    if found is None:
        raise ConfigError(f"module {module!r} has no {name!r}.")
    if not callable(found):
        raise ConfigError(f"{text!r} cannot be called.")
    return found
