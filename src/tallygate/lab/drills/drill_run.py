"""One drill under way: its stack, its load, its pipeline, its clock and what happened.

The order is the same for all: a topic and a pipeline of the drill's own, a load that runs all the
time, a fault in the middle, healing, then no more load; when the pipeline has caught up, what was
acknowledged is compared with what the sink holds, and the audit is asked too.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psycopg
import yaml
from confluent_kafka import KafkaException
from confluent_kafka.admin import OffsetSpec

from tallygate.auditing.verdict import Anomaly, AuditResult
from tallygate.errors import TallygateError
from tallygate.kafka.connection import Connection
from tallygate.kafka.producer import Acks
from tallygate.kafka.read import list_offsets
from tallygate.kafka.topics import Topics
from tallygate.lab.drills.baseline_job import PlainJob, has_read
from tallygate.lab.drills.broker_proxy import BrokerProxy
from tallygate.lab.drills.isolation import environment
from tallygate.lab.drills.jobs import Job
from tallygate.lab.drills.outcome import Control, Event
from tallygate.lab.drills.progress_sampler import EVERY, Gauge, LedgerPositions
from tallygate.lab.drills.subject import Subject
from tallygate.lab.drills.workload import Workload, ids_in
from tallygate.lab.stack import Stack
from tallygate.postgres.connect import connect
from tallygate.quoting import double_quoted
from tallygate.settings import Settings
from tallygate.waiting import wait_until

PARTITIONS = 3
START_TIMEOUT = 90.0
CATCH_UP_TIMEOUT = 180.0
QUICK_START = "spark.conf.spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"


class Scene:
    def __init__(
        self,
        name: str,
        stack: Stack,
        proxies: Sequence[BrokerProxy],
        settings: Settings,
        folder: Path,
        on_event: Callable[[str, Event], None],
        subject: Subject,
    ) -> None:
        """`proxies` stand before the brokers, in the order of their numbers. `on_event` is called
        with every event of the drill."""
        self.drill, self.stack, self.folder, self.proxies = name, stack, folder, proxies
        self.settings = settings.with_flags({"stack": stack.name})
        self.at_end = ExitStack()
        """What is to be ended when the drill is over, whatever became of it."""
        self.name = name.replace("-", "_")
        self.topic = name
        self.connection: Connection = stack.cluster.connection
        self.topics = Topics(self.connection, self.settings)
        self.events: list[Event] = []
        self.subject = subject
        self.workload = Workload(
            self.connection, self.topic, value=subject.value, by_place=not subject.counted
        )
        self.fault_at: float | None = None
        self.gauge = Gauge(LedgerPositions(stack.dsn, self.name), lambda: self.workload)
        self.at_end.callback(self.gauge.close)
        self.at_end.callback(lambda: self.workload.abandon())
        self.wrong: list[str] = []
        """What the drill itself found that did not hold."""
        self.expected_unknown: Callable[[str], bool] = lambda _: False
        """What the audit cannot see because the drill took it away."""
        self.ask_audit: Callable[[], AuditResult]
        self.report: AuditResult | None = None
        self.held: Counter[int] | None = None
        """How often the sink holds each id, if the sink is not a table."""
        self._on_event = on_event
        self.needed: tuple[Job, ...] = ()
        """Programs without which nothing more can come."""
        self.unaided: tuple[Job, ...] = ()
        """Programs that must go on by themselves: each is started again when it ends, but that it
        ended is wrong."""
        folder.mkdir(parents=True, exist_ok=True)

    # What happens

    def event(self, kind: str, text: str) -> None:
        event = Event(round(time.monotonic() - self.gauge.began, 2), kind, text)
        self.events.append(event)
        self._on_event(self.drill, event)
        with (self.folder / "events.jsonl").open("a") as file:
            file.write(json.dumps(asdict(event)) + "\n")

    @contextmanager
    def fault(self, text: str, healed: str) -> Iterator[None]:
        """The fault lasts as long as the block."""
        if self.fault_at is None:
            self.fault_at = time.monotonic()
        self.event("fault", text)
        yield
        self.event("heal", healed)

    # The load and the pipeline

    def create_topic(self, name: str | None = None, **options: Any) -> None:
        given = {"partitions": PARTITIONS, "replication": 3, **options}
        self.topics.create(name or self.topic, **given)

    def spec(self, **changes: Any) -> dict[str, Any]:
        """The pipeline's fields; `changes` are for fields of the whole, of source or of sink.

        **Nothing but the drill's own stack is touched**: it is named in the file, so that no other
        one can be meant, whatever is configured."""
        fields = self.subject.spec(self.name, self.topic)
        own = {
            "source": {"bootstrap_servers": self.connection.bootstrap_servers},
            "sink": {"dsn": self.stack.dsn},
            "checkpoint": str(self.folder / "checkpoint"),
        }
        for name, change in (*own.items(), *changes.items()):
            inner = isinstance(change, dict) and isinstance(fields.get(name), dict)
            fields[name] = {**fields[name], **change} if inner else change
        return fields

    @property
    def spec_file(self) -> Path:
        return self.folder / f"{self.name}.yaml"

    def refused(self) -> Job:
        """The pipeline once more, which is to end with an error and is not started again."""
        job = self.pipeline(name="the refused pipeline")
        job.patience = 1
        return job

    def pipeline(self, spec: dict[str, Any] | None = None, *flags: str, name: str = "") -> Job:
        """The pipeline as a program of its own."""
        path = self.folder / f"{name}.yaml" if name else self.spec_file
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(spec or self.spec(), sort_keys=False))
        command = [sys.executable, "-m", "tallygate", "run", str(path), "--json"]
        command += ["--name", self.stack.name, "--set", QUICK_START, *flags]
        return self.job(name or "the pipeline", command)

    def plain(self, **fields: Any) -> Job:
        """The plain job beside it, into a table of its own."""
        given = {
            "topic": self.topic,
            "checkpoint": str(self.folder / "plain-checkpoint"),
            "dsn": self.stack.dsn,
            "table": f"{self.name}_plain",
            "died": str(self.folder / "plain-died"),
            "by_place": not self.subject.counted,
            **fields,
        }
        job = PlainJob(self.connection.bootstrap_servers, **given)
        return self.job("the plain job", job.command())

    def careless(self, acks: Acks, **options: Any) -> Workload:
        """A producer that asks for less, on a topic of its own."""
        name = f"{self.topic}-acks-{acks}"
        self.create_topic(
            name, **{"partitions": 1, "configs": {"min.insync.replicas": "1"}, **options}
        )
        workload = Workload(self.connection, name, rate=200, acks=acks)
        self.at_end.callback(workload.abandon)
        return workload

    def start(self, *jobs: Job, first: int = 200) -> None:
        """Some records first, then the pipeline, then the load; and wait until all of it runs."""
        if self.topic not in self.topics.names():
            self.create_topic()
        self.workload.send(first)
        for job in jobs:
            job.start()
        self.needed = jobs[:1]
        self.gauge.start()
        self.wait_committed(1, START_TIMEOUT)
        self.workload.start()
        self.event("note", "the pipeline commits, the load is on")

    @property
    def all_wrong(self) -> tuple[str, ...]:
        """What did not hold, besides lost and repeated records."""
        ended = [
            f"{job.name} was to go on by itself, but ended ({', '.join(job.ends)})"
            for job in self.unaided
            if job.deaths
        ]
        return (*self.wrong, *ended)

    # How far everything is

    def wait_committed(self, more: int, timeout: float = 60) -> None:
        """Wait until the pipeline has committed so many more records."""
        wanted = self.gauge.committed + more

        def done() -> bool:
            self._check_needed()
            return self.gauge.committed >= wanted

        wait_until(
            done,
            timeout,
            lambda: f"the pipeline did not commit for {timeout:.0f} s; see {self.folder}",
        )

    def catch_up(self, timeout: float = CATCH_UP_TIMEOUT) -> None:
        """No more load, and wait until the pipeline has everything."""
        self.workload.stop()
        self.event("note", "the load is off")

        def done() -> bool:
            self._check_needed()
            held = self.gauge.samples[-1].committed
            ends = self._ends()
            return ends is not None and held >= sum(ends.values())

        wait_until(
            done, timeout, f"the pipeline did not catch up in {timeout:.0f} s; see {self.folder}",
            every=EVERY,
        )  # fmt: skip
        self.event("note", "the pipeline has caught up")

    def _ends(self) -> dict[int, int] | None:
        """Where each partition of the topic ends; None while no broker says so."""
        partitions = [(self.topic, number) for number in self.workload.partitions]
        with suppress(TallygateError, KafkaException):
            found = list_offsets(partitions, OffsetSpec.latest(), self.connection)  # type: ignore[no-untyped-call]
            return {number: end for (_, number), end in found.items()}
        return None

    def _check_needed(self) -> None:
        """Nothing more can come from a pipeline that is not started again."""
        for job in self.needed:
            if job.is_left_alone and job.last_words:
                raise TallygateError(f"{job.name} failed for good: {job.last_words.strip()[-300:]}")

    # What the sinks hold

    def rows(self, table: str | None = None) -> Counter[int]:
        """How often each id is in a table, which may not be there yet."""
        with connect(self.stack.dsn, timeout=10, autocommit=True) as connection:
            quoted = double_quoted(table or self.name)
            query = f"SELECT id, count(*) FROM public.{quoted} WHERE id IS NOT NULL GROUP BY id"
            try:
                found = connection.execute(query.encode())
            except psycopg.errors.UndefinedTable:
                return Counter()
            return Counter({int(number): int(count) for number, count in found})

    def lost_and_duplicated(self, report: AuditResult) -> tuple[int, int]:
        """Of the load: by its ids in the table, or where it has none as the audit says."""
        if self.subject.counted:
            return self.missing_and_repeated(self.rows() if self.held is None else self.held)
        found = Counter({each.kind: each.count for each in report.anomalies})
        return found["missing"], found["duplicate"]

    def missing_and_repeated(
        self, held: Counter[int], workload: Workload | None = None
    ) -> tuple[int, int]:
        promised = (workload or self.workload).acknowledged
        lost = sum(1 for number in promised if number not in held)
        return lost, sum(count - 1 for count in held.values() if count > 1)

    def plain_control(
        self, what: str, must: str = "repeat", name: str = "plain foreachBatch"
    ) -> Control:
        lost, twice = self.missing_and_repeated(self.rows(f"{self.name}_plain"))
        return Control(name, what, must, len(self.workload.acknowledged), lost, twice)

    def topic_control(self, workload: Workload, what: str) -> Control:
        held = Counter(ids_in(workload.topic, self.connection))
        lost, twice = self.missing_and_repeated(held, workload)
        name = f"acks={workload.acks}"
        return Control(name, what, "lose", len(workload.acknowledged), lost, twice)

    def wait_plain(self, timeout: float = 90) -> None:
        """Wait until the plain job has read everything: only then is lost what it does not have."""

        def done() -> bool:
            ends = self._ends()
            return ends is not None and has_read(self.folder / "plain-checkpoint", self.topic, ends)

        wait_until(done, timeout, "the plain job did not read everything", every=EVERY)

    def audited(self) -> AuditResult:
        """Ask the audit, at the end or while the source is still there."""
        self.event("note", "the audit recomputes")
        self.report = self.ask_audit()
        return self.report

    def compared(self, held: Counter[int]) -> AuditResult:
        """Where no pipeline is there to be audited: each record of the load must be held once."""
        lost, twice = self.missing_and_repeated(held)
        found = (("missing", lost), ("duplicate", twice))
        return AuditResult(
            pipeline=self.name,
            target=self.name,
            records=len(self.workload.acknowledged),
            rows=sum(held.values()),
            anomalies=tuple(Anomaly(kind, count, ()) for kind, count in found if count),
        )

    # How long it took

    def measures(self) -> dict[str, float | None]:
        """How long it took, by the names of an outcome's fields."""
        if self.fault_at is None:
            return {}
        return {
            "producer_seconds": self.workload.longest_wait(self.fault_at),
            "pipeline_seconds": self.gauge.longest_pause(self.fault_at),
            "longest_wait": self.gauge.longest_wait(self.fault_at),
        }

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self.gauge.began, 1)

    def job(self, name: str, command: Sequence[str]) -> Job:
        """A program that is started again when it dies, until the drill ends."""
        log = self.folder / f"{name.removeprefix('the ').replace(' ', '-')}.log"
        on_change: Callable[[str], None] = lambda text: self.event("run", text)  # noqa: E731
        job = Job(name, command, log, on_change, environment(self.settings))
        self.at_end.callback(job.end)
        return job
