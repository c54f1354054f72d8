"""Which jars there are, and their paths as spark-submit takes them."""

import hashlib
import json
from pathlib import Path

from fixtures.commands import Tallygate
from tallygate.jvm.jars import MANIFEST, named_set
from tallygate.settings import Settings


def _cached(cache: Path, name: str, *jars: str) -> Path:
    """A set that is in the cache, of jars that are not read."""
    folder = named_set(name).folder(Settings.load({"cache.dir": str(cache)}))
    folder.mkdir(parents=True)
    for jar in jars:
        (folder / jar).write_text(jar)
    digests = {jar: hashlib.sha256(jar.encode()).hexdigest() for jar in jars}
    (folder / MANIFEST).write_text(json.dumps(digests))
    return folder


def test_the_paths_of_sets_have_commas_between_them(tmp_path: Path, tallygate: Tallygate) -> None:
    cache = tmp_path / "cache"
    spark, delta = _cached(cache, "spark", "a.jar", "b.jar"), _cached(cache, "delta", "c.jar")
    here = ("--set", f"cache.dir={cache}")
    assert tallygate("jars", "paths", *here).stdout == f"{spark}/a.jar,{spark}/b.jar\n"
    both = tallygate("jars", "paths", "spark", "delta", *here).stdout
    assert both == f"{spark}/a.jar,{spark}/b.jar,{delta}/c.jar\n"
    listed = json.loads(tallygate("jars", "list", *here, "-o", "json").stdout)
    found = {row["set"]: (row["cached"], row["folder"]) for row in listed}
    assert found["spark"] == (True, str(spark))
    assert found["kafka"][0] is False
