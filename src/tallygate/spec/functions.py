"""Python objects that a pipeline names in its text, as `module:name`."""

import importlib
import re
from typing import Any

from tallygate.errors import ConfigError

__all__ = ["is_reference", "referred"]

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_reference(text: str) -> bool:
    return _REFERENCE.fullmatch(text.strip()) is not None


def referred(text: str) -> Any:
    """What `module:name` names; it must be callable."""
    module, _, name = text.strip().partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(f"{text!r} cannot be imported: {error}.") from None
    except AttributeError:
        raise ConfigError(f"module {module!r} has no {name!r}.") from None
    if not callable(found):
        raise ConfigError(f"{text!r} cannot be called.")
    return found
