"""The one way to get a Spark session.

Spark is loud. What its JVM and workers write goes to a file of its own in the state folder, so
that a terminal shows only what its user asked for, and nothing is lost when it is needed.
"""

import atexit
import glob
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tallygate import failpoints
from tallygate.errors import ConfigError, MachineError
from tallygate.extras import require_extra
from tallygate.jvm.class_archive import sharing
from tallygate.jvm.jars import jar_paths
from tallygate.jvm.java import find_java
from tallygate.paths import tail
from tallygate.ports import LOOPBACK
from tallygate.progress import Progress, silent
from tallygate.settings import Settings, is_secret
from tallygate.spark.checks import check_internals

CONNECTOR_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
EXTENSIONS, CATALOG = "spark.sql.extensions", "spark.sql.catalog.spark_catalog"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
STATE_TASKS = "spark.databricks.delta.snapshotPartitions"
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
STATE_STORE = "spark.sql.streaming.stateStore"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FEWEST_SHUFFLE_PARTITIONS, MOST_SHUFFLE_PARTITIONS = 2, 64
LOGS_KEPT = 20


def session(
    name: str = "tallygate",
    *,
    master: str | None = None,
    existing: SparkSession | None = None,
    config: Mapping[str, str] | None = None,
    settings: Settings | None = None,
    progress: Progress = silent,
    delta: bool = False,
    meanwhile: Callable[[], object] = lambda: None,
) -> SparkSession:
    """A session that can talk to Kafka and PostgreSQL, and with `delta` to Delta tables too.

    Settings in rising precedence: what spark-submit was told, `spark.conf.*` of the settings,
    `config`; those below stand where none of these says otherwise, and jars are added to those of
    the user. A session of the user's own is checked for the Kafka connector and otherwise left as
    it is. `meanwhile` is what the caller can do while a JVM starts, as imports.
    """
    require_extra("spark", "a Spark session")
    failpoints.mark_driver()
    settings = settings or Settings.load()
    existing = existing or SparkSession.getActiveSession()
    if existing is not None:
        if master or config:
            raise ConfigError(
                "a Spark session is active already, and master and config come too late for it; "
                "set them where it is made, or stop it first."
            )
        check_internals(existing)
        _check_connector(existing, settings)
        if delta:
            check_delta(existing, settings)
        return existing
    java = find_java(settings)
    sets = ("spark", "delta") if delta else ("spark",)
    jars = [str(path) for name in sets for path in jar_paths(name, settings, progress)]
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    told = _told_by_submit()
    given = {**settings.section("spark.conf"), **(config or {})}
    conf = {
        "spark.app.name": name,
        "spark.driver.memory": settings.required("spark.driver.memory"),
        # State on disk, of which a batch writes down the changes: memory does not grow with keys.
        f"{STATE_STORE}.providerClass": ROCKSDB,
        f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **told,
        "spark.python.daemon.module": "tallygate.spark.worker_daemon",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        **_place(master, settings),
        **given,
        "spark.jars": joined(jars, told.get("spark.jars", ""), given.get("spark.jars", "")),
        **(_with_delta(given) if delta else {}),
    }
    options = sharing("spark", java, settings)
    if SparkContext._gateway is None:
        folder = own_folder(settings.state_dir / "tmp", socket.gethostname())
        options.append(f'"-Djava.io.tmpdir={folder}"')
    conf |= _java_options([*options, told.get(JAVA_OPTIONS, ""), given.get(JAVA_OPTIONS, "")])
    progress("Spark: starting")
    if SparkContext._gateway is None:
        _launch(conf, _new_log(settings.state_dir / "logs"), meanwhile)
    else:
        meanwhile()
    spark = SparkSession.builder.config(conf=_spark_conf(conf)).getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    check_internals(spark)
    _check_connector(spark, settings)
    if "spark.sql.shuffle.partitions" not in {**told, **given}:
        spark.conf.set("spark.sql.shuffle.partitions", _shuffle_partitions(spark))
    return spark


def _told_by_submit() -> dict[str, str]:
    """What spark-submit was told, its flags and its file of defaults, if it started this program:
    it has started the JVM as well, with the classes of its `--jars` and `--packages`."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def joined(own: Sequence[str], *theirs: str) -> str:
    """Our jars and those that others name, each once."""
    named = [each for text in theirs for each in text.split(",") if each]
    return ",".join(dict.fromkeys([*own, *named]))


def _java_options(options: Sequence[str]) -> dict[str, str]:
    written = " ".join(filter(None, options))
    return {JAVA_OPTIONS: written} if written else {}


def _with_delta(given: Mapping[str, str]) -> dict[str, str]:
    """What Delta needs of a session; extensions of the user's own stay."""
    own = [each for each in given.get(EXTENSIONS, "").split(",") if each]
    extensions = list(dict.fromkeys([*own, DELTA_EXTENSION]))
    return {
        EXTENSIONS: ",".join(extensions),
        CATALOG: given.get(CATALOG, DELTA_CATALOG),
        # With every commit Delta works out the table's state, in 50 tasks unless told otherwise.
        STATE_TASKS: given.get(STATE_TASKS, "4"),
    }


def _place(master: str | None, settings: Settings) -> dict[str, str]:
    """The master, and for a local one an address that no other machine can reach.

    Under spark-submit its own master holds unless one was asked for here.
    """
    chosen = settings.values["spark.master"]
    if master is None and chosen.origin == "default" and "PYSPARK_GATEWAY_PORT" in os.environ:
        return {}
    where = master or chosen.text
    loopback = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    return {"spark.master": where, **(loopback if where.startswith("local") else {})}


def _spark_conf(properties: Mapping[str, str]) -> SparkConf:
    return SparkConf(loadDefaults=False).setAll(list(properties.items()))


def _launch(conf: Mapping[str, str], log: Path, meanwhile: Callable[[], object]) -> None:
    """Start the JVM with its output in `log`.

    A second JVM, which works out the command line of the first, lives for a moment: the best
    compiler would cost it more than it has to do.

    What is given here ends up on a command line, which anyone can see, so secrets are left out:
    the session takes them afterwards.
    """
    public = _spark_conf({name: text for name, text in conf.items() if not is_secret(name)})
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    with log.open("wb") as file, ThreadPoolExecutor(1) as pool:
        starting = pool.submit(launch_gateway, public, {"stdout": file, "stderr": file})
        meanwhile()
        try:
            gateway = starting.result()
        except PySparkRuntimeError as error:
            said = "".join(f"\n    {line}" for line in tail(log, 10))
            raise MachineError(f"Spark did not start; its last lines were:{said}") from error
    SparkContext._ensure_initialized(gateway=gateway, conf=public)


def _new_log(folder: Path) -> Path:
    """A file for this session's log; only the newest are kept, and those of sessions that live."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(folder.glob("spark-*.log"))[: -LOGS_KEPT + 1]:
        if not _is_of_living(old.stem):
            old.unlink(missing_ok=True)
    return folder / f"spark-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log"


def own_folder(folder: Path, host: str) -> Path:
    """A folder for what Spark writes down for a while. It goes with this program; what programs
    left that were killed goes when another one starts. Other machines, or containers, may share the
    state folder, and have programs of the same number: theirs are for them to judge."""
    folder.mkdir(parents=True, exist_ok=True)
    here = f"spark-{host}-"
    own = Path(tempfile.mkdtemp(prefix=here, suffix=f"-{os.getpid()}", dir=folder))
    for old in folder.glob(f"{glob.escape(here)}*"):
        if not _is_of_living(old.name):  # of which a host's name may have dots
            shutil.rmtree(old, ignore_errors=True)
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return own


def _is_of_living(name: str) -> bool:
    """Whether the program whose number the name ends with is alive."""
    pid = name.rpartition("-")[2]
    return pid.isdigit() and Path(f"/proc/{pid}").exists()


def _shuffle_partitions(spark: SparkSession) -> int:
    """As many as the cores. Spark's 200 are for large batches: a stream pays for each of them, in
    tasks and in state stores, with every micro-batch."""
    cores = spark.sparkContext.defaultParallelism
    return max(FEWEST_SHUFFLE_PARTITIONS, min(cores, MOST_SHUFFLE_PARTITIONS))


def has_class(spark: SparkSession, name: str) -> bool:
    """Whether the session's JVM can load a class."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    try:
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        jvm.java.lang.Class.forName(name, False, loader)
    except Py4JJavaError:
        return False
    return True


def _check_connector(spark: SparkSession, settings: Settings) -> None:
    if not has_class(spark, CONNECTOR_CLASS):
        jars = ",".join(str(path) for path in jar_paths("spark", settings))
        raise ConfigError(
            "this Spark session lacks the Kafka connector; start it with the property "
            f"spark.jars={jars}"
        )


def check_delta(spark: SparkSession, settings: Settings) -> None:
    """Refuse a session without Delta. It cannot be given it later: the properties are read once,
    when a session is made."""
    extensions = spark.conf.get(EXTENSIONS, "") or ""
    if DELTA_EXTENSION in extensions and spark.conf.get(CATALOG, None) is not None:
        return
    jars = ",".join(str(path) for name in ("spark", "delta") for path in jar_paths(name, settings))
    raise ConfigError(
        f"this Spark session lacks Delta; start it with the properties {EXTENSIONS}="
        f"{DELTA_EXTENSION}, {CATALOG}={DELTA_CATALOG} and spark.jars={jars}"
    )
