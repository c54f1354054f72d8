"""Drills on what is in the topic: it is gone, it is another one, it has grown, it is garbage."""

import json
import threading
import time

from confluent_kafka import KafkaError, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tallygate.core.offsets import Range
from tallygate.errors import TallygateError
from tallygate.kafka import clients
from tallygate.kafka.read import list_offsets
from tallygate.lab.drills.drill import Drills
from tallygate.lab.drills.drill_run import Scene
from tallygate.lab.drills.jobs import Job
from tallygate.lab.drills.outcome import Control
from tallygate.lab.drills.workload import Workload
from tallygate.postgres.connect import connect
from tallygate.waiting import wait_until

DRILLS = Drills()
NEW_RECORDS = set(range(10_000_000, 10_000_100))


@DRILLS.add(
    "bad-records",
    """Among the records are some that are no JSON, and some with a text where a number belongs.
    Each goes to the dead letters, with where it came from and why; every good one is in the table
    once.""",
)
def bad_records(scene: Scene) -> tuple[Control, ...]:
    scene.workload = Workload(scene.connection, scene.topic, value=_sometimes_bad)
    pipeline, plain = scene.pipeline(), scene.plain(mode="FAILFAST")
    plain.patience = 1
    scene.start(pipeline, plain)
    with scene.fault("every fiftieth record is garbage", "and stays so"):
        scene.wait_committed(2000)
    scene.catch_up()
    wait_until(lambda: plain.is_left_alone, 60, "the plain job did not stop at a bad record")
    if "MALFORMED_RECORD" not in (scene.folder / "plain-job.log").read_text(errors="replace"):
        raise TallygateError("the plain job stopped for another reason; see its log")
    bad = {number for number in scene.workload.acknowledged if _is_bad(number)}
    scene.workload.acknowledged -= bad
    letters = _count(scene, "SELECT count(*) FROM tallygate.dead_letters WHERE pipeline = %s")
    if letters != len(bad):
        scene.wrong.append(f"{len(bad)} records were bad, but {letters} are dead letters")
    what = "With FAILFAST it stops at the first bad record, and what comes after is not read."
    return (scene.plain_control(what, "lose"),)


def _is_bad(number: int) -> bool:
    return number >= 200 and number % 50 == 0


def _sometimes_bad(number: int) -> str:
    if not _is_bad(number):
        return json.dumps({"id": number, "account": "a", "amount": 1.5, "at": None})
    return "no JSON at all" if number % 100 else json.dumps({"id": f"n{number}", "amount": "much"})


def _count(scene: Scene, query: str) -> int:
    with connect(scene.stack.dsn, autocommit=True) as connection:
        row = connection.execute(query.encode(), (scene.name,)).fetchone()
    return int(row[0]) if row else 0


@DRILLS.add(
    "partitions-added",
    """Partitions are added while the pipeline runs. Their records are found by themselves, from the
    first one on; nothing is lost or repeated.""",
)
def partitions_added(scene: Scene) -> tuple[Control, ...]:
    scene.start(scene.pipeline())
    reader = LatestReader(scene)
    scene.at_end.callback(reader.close)
    scene.wait_committed(400)
    with scene.fault("two partitions are added", "records arrive in them"):
        scene.topics.alter(scene.topic, partitions=5)
        new = _sent_to(scene, range(3, 5))
    scene.workload.acknowledged |= new
    scene.workload.partitions |= {3, 4}
    scene.wait_committed(400)
    scene.catch_up()
    wait_until(lambda: reader.partitions >= 5, 30, "the control does not find the new partitions")
    time.sleep(2)
    return (
        Control(
            "auto.offset.reset=latest",
            "Of the records in the new partitions, those that a consumer gets that begins new "
            "partitions at their end, and looks for them now and then.",
            "lose",
            len(new),
            len(new - reader.seen),
            0,
        ),
    )


class LatestReader:
    """A consumer that begins new partitions at their end, in a thread of its own."""

    def __init__(self, scene: Scene) -> None:
        self.seen: set[int] = set()
        self.partitions = 0
        self._consumer = clients.consumer(
            scene.connection,
            group_id=f"{scene.name}.latest",
            auto_offset_reset="latest",
            topic_metadata_refresh_interval_ms=3000,
        )
        self._consumer.subscribe([scene.topic])
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        wait_until(lambda: self.seen, 30, "the control reads nothing")

    def close(self) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():
            message = self._consumer.poll(0.2)
            self.partitions = len(self._consumer.assignment())
            if message is not None and message.error() is None:
                self.seen.add(int(json.loads(message.value() or b"{}")["id"]))
        self._consumer.close()


def _sent_to(scene: Scene, partitions: range) -> set[int]:
    """The load places records by key among the partitions that it knows; these it does not know
    yet. A client that does not know them either fails a record, which is sent again."""
    acknowledged: set[int] = set()
    producer = clients.producer(scene.connection, acks="all", enable_idempotence=True)

    def send(number: int) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is None:
                acknowledged.add(number)

        row = {"id": number, "account": "new", "amount": 1.0, "at": None}
        producer.produce(
            scene.topic,
            json.dumps(row),
            partition=partitions[number % 2],
            on_delivery=delivered,
        )

    def sent() -> bool:
        for number in NEW_RECORDS - acknowledged:
            send(number)
        producer.flush(30)
        return acknowledged == NEW_RECORDS

    wait_until(sent, 60, "the new partitions take no records", every=0.5)
    return acknowledged


@DRILLS.add(
    "retention-overtakes",
    """The pipeline is down while retention removes records that it has not read. It refuses to go
    on in silence, and says which records are lost. Told to accept the loss, it goes on, and the
    lost range is kept in the ledger, exactly.""",
)
def retention_overtakes(scene: Scene) -> tuple[Control, ...]:
    pipeline = scene.pipeline()
    plain = scene.plain(options={"failOnDataLoss": "false"})
    scene.start(pipeline, plain)
    scene.wait_committed(400)
    with scene.fault(
        "the pipeline is down, retention removes what it has not read", "it may go on"
    ):
        pipeline.stop()
        plain.stop()
        held = scene.gauge.positions.read()
        scene.workload.wait_for(1000)
        gone = _retire(scene, held)
        refused = scene.refused()
        refused.start()
        wait_until(lambda: refused.is_left_alone, 120, "the pipeline did not stop")
        said = refused.last_words
        for number, (start, until) in gone.items():
            if until > start and str(Range(scene.topic, number, start, until)) not in said:
                scene.wrong.append(f"the error does not say what partition {number} lost")
        scene.event("note", f"refused: {said.strip().splitlines()[-1]}")
    accepting = scene.pipeline(None, "--accept-loss")
    accepting.start()
    plain.start()
    scene.wait_committed(400, 120)
    scene.catch_up()
    scene.wait_plain()
    removed = sum(until - start for start, until in gone.values())
    noted = _count(
        scene,
        "SELECT coalesce(sum(until_offset - from_offset), 0) FROM tallygate.lost_ranges "
        "WHERE pipeline = %s",
    )
    if noted != removed:
        scene.wrong.append(f"{removed} records are gone, but the ledger says {noted}")
    what = "With failOnDataLoss=false, which many set, it goes on and says nothing."
    control = scene.plain_control(what, "lose")
    _forgive(scene, removed)
    scene.expected_unknown = lambda text: "retention removed" in text
    return (control,)


def _retire(scene: Scene, held: dict[int, int]) -> dict[int, tuple[int, int]]:
    """Remove what is there now, as retention does; returns for each partition what is lost."""
    partitions = [(scene.topic, number) for number in held]
    ends = list_offsets(partitions, OffsetSpec.latest(), scene.connection)  # type: ignore[no-untyped-call]
    cut = [TopicPartition(topic, number, offset) for (topic, number), offset in ends.items()]
    admin = clients.admin(scene.connection)
    for future in admin.delete_records(cut).values():
        future.result(30)
    return {number: (held[number], ends[scene.topic, number]) for number in held}


def _forgive(scene: Scene, removed: int) -> None:
    """Records that were removed by hand are not lost by anybody, if their number is right."""
    gone = scene.workload.acknowledged - set(scene.rows())
    if len(gone) == removed:
        scene.workload.acknowledged -= gone


@DRILLS.add(
    "topic-recreated",
    """The topic is deleted and recreated under the same name. Its offsets mean other records now:
    the pipeline refuses to go on, and says so. Nothing of the new topic is taken for the old.""",
)
def topic_recreated(scene: Scene) -> tuple[Control, ...]:
    pipeline = scene.pipeline()
    plain = scene.plain(options={"failOnDataLoss": "false"})
    scene.start(pipeline, plain)
    scene.wait_committed(400)
    scene.catch_up()
    scene.wait_plain()
    before = scene.rows()
    scene.audited()
    with scene.fault("the topic is recreated", "the pipeline starts"):
        pipeline.stop()
        plain.stop()
        scene.topics.delete([scene.topic])
        wait_until(lambda: scene.topic not in scene.topics.names(), 30, "the topic is still there")
        scene.create_topic()
        newer = Workload(scene.connection, scene.topic)
        newer.produced = 1_000_000
        newer.send(500)
        refused = scene.refused()
        refused.start()
        wait_until(lambda: refused.is_left_alone, 120, "the pipeline did not stop")
        scene.event("note", f"refused: {refused.last_words.strip().splitlines()[-1]}")
    if "deleted and recreated" not in refused.last_words:
        scene.wrong.append("the error does not say that the topic is another one")
    if scene.rows() != before:
        scene.wrong.append("records of the new topic are in the table")
    _start_again(scene, plain)
    held = scene.rows(f"{scene.name}_plain")
    lost = sum(1 for number in newer.acknowledged if number not in held)
    what = "With failOnDataLoss=false it takes the new topic for the old, and begins in its middle."
    return (
        Control("plain foreachBatch", what, "lose or repeat", len(newer.acknowledged), lost, 0),
    )


def _start_again(scene: Scene, plain: Job) -> None:
    """Until it has passed over the new records, alive: what it has not read yet, or could not read
    because it died, it has not lost in silence."""
    before = len(plain.deaths)
    plain.start()
    scene.wait_plain()
    if len(plain.deaths) > before or not plain.is_running:
        raise TallygateError("the plain job did not survive the new topic; see its log")
