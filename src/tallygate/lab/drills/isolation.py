"""The ground that drills stand on: this machine's settings, and no configured cluster.

**Whatever is configured, no drill reaches it**: of the settings only those count that say how
programs run on this machine. The programs that a drill starts get no other ones either, neither
from the environment nor from a file that happens to lie in the current folder.
"""

import os
from pathlib import Path

from tallygate.settings import ENVIRONMENT_PREFIX, Settings

MACHINE = ("timeout", "cache.dir", "state.dir", "java.home", "ivy.settings", "spark.driver.memory")


def machine_only(settings: Settings) -> Settings:
    """What is about the machine, and defaults for the rest."""
    kept = {
        name: value
        for name, value in settings.values.items()
        if name in MACHINE or value.origin == "default"
    }
    defaults = Settings.load(environment={}, file=Path(os.devnull))
    return Settings({**defaults.values, **kept})


def environment(settings: Settings) -> dict[str, str]:
    """For programs of their own: the same settings, and no others."""
    given = {k: v for k, v in os.environ.items() if not k.startswith(ENVIRONMENT_PREFIX)}
    given[f"{ENVIRONMENT_PREFIX}CONFIG"] = os.devnull
    return given | settings.as_environment(MACHINE)
