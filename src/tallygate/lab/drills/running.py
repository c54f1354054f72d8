"""Drills played one after the other on one stack, each audited, each kept in its own folder."""

import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import psutil
import pyspark
from pyspark.sql import SparkSession

from tallygate.auditing.audit import audit
from tallygate.auditing.verdict import AuditResult, Verdict
from tallygate.engine.pipeline import Pipeline
from tallygate.errors import ConfigError, TallygateError
from tallygate.jvm.jars import KAFKA_VERSION
from tallygate.lab.drills.broker_proxy import BrokerProxy
from tallygate.lab.drills.drill import Drill
from tallygate.lab.drills.drill_run import Scene
from tallygate.lab.drills.isolation import machine_only
from tallygate.lab.drills.outcome import Event, Outcome
from tallygate.lab.drills.subject import Payments, Subject
from tallygate.lab.process import ProcessState
from tallygate.lab.stack import Stack
from tallygate.ports import LOOPBACK, free_ports
from tallygate.progress import Progress
from tallygate.settings import Settings
from tallygate.spark.session import session

PAYMENTS = Payments()
BROKERS = 3
# Long enough that no replica is thrown out of the ISR while a drill holds it back for a moment.
CONFIG = {"replica.lag.time.max.ms": "20000"}


def play_all(
    drills: Sequence[Drill],
    folder: Path,
    settings: Settings,
    progress: Progress,
    on_event: Callable[[str, Event], None] | None = None,
    subject: Subject = PAYMENTS,
) -> Iterator[Outcome]:
    """Play them on a stack of their own, which is gone at the end. The quorum has nodes of its own:
    drills stop most of the brokers."""

    settings = machine_only(settings)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} has files in it; each run needs a folder of its own.")

    def shown(drill: str, event: Event) -> None:
        progress(f"{drill}: {event.text}")

    with _stack(settings, progress) as (stack, proxies), _spark(settings, progress) as spark:
        for number, drill in enumerate(drills):
            if number:
                _mend(stack, proxies)
            place = folder / drill.name
            scene = Scene(drill.name, stack, proxies, settings, place, on_event or shown, subject)
            outcome = play_one(drill, scene, spark)
            outcome.keep(folder / drill.name)
            yield outcome


def new_folder(settings: Settings) -> Path:
    """Where a run is kept: every one has a folder of its own."""
    return settings.state_dir / "drills" / time.strftime("%Y%m%d-%H%M%S")


def facts() -> dict[str, str]:
    """What it was played with."""
    memory = psutil.virtual_memory().total / (1 << 30)
    return {
        "Tallygate": version("tallygate"),
        "Kafka": KAFKA_VERSION,
        "Spark": pyspark.__version__,
        "PostgreSQL": "18",
        "Machine": f"{psutil.cpu_count()} cores, {memory:.0f} GiB",
        "Date": time.strftime("%Y-%m-%d %H:%M %Z"),
    }


def play_one(drill: Drill, scene: Scene, spark: SparkSession) -> Outcome:
    """**A drill that crashed has shown nothing**: its verdict is unknown."""
    folder = scene.folder
    about = {"name": drill.name, "must_hold": drill.must_hold, "seed": drill.seed, **facts()}
    (folder / "drill.json").write_text(json.dumps(about, indent=1))
    scene.ask_audit = lambda: audit(
        Pipeline.load(scene.spec_file), settings=scene.settings, spark=spark
    )
    try:
        controls = drill.play(scene)
        report = scene.audited() if scene.report is None else scene.report
        lost, duplicated = scene.lost_and_duplicated(report)
        (folder / "audit.json").write_text(json.dumps(report.as_dict(), default=str, indent=1))
        verdict, wrong, unknown = _judged(report, scene.expected_unknown)
        if not report.rows:
            unknown = (*unknown, "no row has reached the sink, so nothing was shown")
        return Outcome(
            drill.name,
            drill.must_hold,
            acknowledged=len(scene.workload.acknowledged),
            lost=lost,
            duplicated=duplicated,
            audit=verdict,
            wrong=(*scene.all_wrong, *wrong),
            unknown=unknown,
            **scene.measures(),
            controls=controls,
            samples=tuple(scene.gauge.samples),
            events=tuple(scene.events),
            seconds=scene.seconds,
            seed=drill.seed,
        )
    except Exception as error:
        return Outcome(
            drill.name,
            drill.must_hold,
            acknowledged=len(scene.workload.acknowledged),
            wrong=scene.all_wrong,
            unknown=(f"the drill did not come to its end: {type(error).__name__}: {error}",),
            samples=tuple(scene.gauge.samples),
            events=tuple(scene.events),
            seconds=scene.seconds,
            seed=drill.seed,
        )
    finally:
        scene.at_end.close()


def _judged(
    report: AuditResult, expected: Callable[[str], bool]
) -> tuple[Verdict, tuple[str, ...], tuple[str, ...]]:
    """The audit's verdict; what it could not see because the drill took it away is no surprise."""
    wrong = tuple(f"the audit found {each.count} {each.kind}" for each in report.anomalies)
    unknown = tuple(f"audit: {text}" for text in report.unknown if not expected(text))
    if wrong:
        return Verdict.INVALID, wrong, unknown
    return (Verdict.UNKNOWN if unknown else Verdict.VALID), (), unknown


@contextmanager
def _stack(settings: Settings, progress: Progress) -> Iterator[tuple[Stack, list[BrokerProxy]]]:
    """Three brokers, each behind a proxy of its own, and three controllers."""
    ports = free_ports(BROKERS)
    stack = Stack(
        f"drill-{secrets.token_hex(3)}",
        brokers=BROKERS,
        controllers=3,
        config=CONFIG,
        advertised=ports,
        purge=True,
        settings=settings,
    )

    def place(number: int) -> Callable[[], tuple[str, int]]:
        return lambda: (LOOPBACK, stack.spec.cluster.brokers[number].port)

    proxies = [BrokerProxy(place(number), listen=port) for number, port in enumerate(ports)]
    try:
        stack.up(progress=progress)
        yield stack, proxies
    finally:
        stack.down(purge=True, progress=progress)
        for proxy in proxies:
            proxy.close()


@contextmanager
def _spark(settings: Settings, progress: Progress) -> Iterator[SparkSession]:
    """For the audits; one that is there already is used, and stays."""
    there = SparkSession.getActiveSession()
    spark = session("tallygate drill", existing=there, settings=settings, progress=progress)
    try:
        yield spark
    finally:
        if there is None:
            spark.stop()


def _mend(stack: Stack, proxies: Sequence[BrokerProxy]) -> None:
    """Whatever a drill left broken is made whole for the next one."""
    for proxy in proxies:
        proxy.heal()
        proxy.late = None
    if stack.postgres.state is ProcessState.STOPPED:
        stack.postgres.start()
    for node in stack.cluster.nodes:
        if node.state is ProcessState.PAUSED:
            node.process.kill()
        if node.state is ProcessState.STOPPED:
            node.start()
            time.sleep(0.1)
    for node in stack.cluster.nodes:
        try:
            stack.cluster.wait_node(node.spec.id)
        except TallygateError:
            node.process.kill()
            stack.cluster.start_node(node.spec.id)
