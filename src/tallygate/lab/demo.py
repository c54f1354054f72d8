"""The demo: the whole story in one drill.

Load, a pipeline, and beside it the job that everybody writes; then the leader of a partition is
killed, and the driver of each of the two. At the end the audit, and one table.
"""

from collections.abc import Callable, Iterator

from tallygate.errors import TallygateError
from tallygate.lab.drills.drill import Drill
from tallygate.lab.drills.drill_run import Scene
from tallygate.lab.drills.faults.brokers import leader_of, restore
from tallygate.lab.drills.faults.drivers import KILLED
from tallygate.lab.drills.outcome import Control, Event, Outcome
from tallygate.lab.drills.report.page import write_report
from tallygate.lab.drills.running import facts, new_folder, play_all
from tallygate.progress import Progress
from tallygate.settings import Settings

NAME = "demo"


def run(
    events: int, settings: Settings, progress: Progress, say: Callable[[str], None]
) -> Iterator[str]:
    """Play the demo, yielding the lines of its result; everything is stopped at the end."""
    folder = new_folder(settings)

    def on_event(_: str, event: Event) -> None:
        say(f"{event.at:6.1f} s  {event.text}")

    (outcome,) = play_all([_story(events)], folder, settings, progress, on_event)
    report = write_report([outcome], folder, title="Tallygate demo", facts=facts())
    yield from _table(outcome)
    yield from (*outcome.wrong, *outcome.unknown)
    yield f"Report: {report}"
    if outcome.verdict.exit_code:
        raise TallygateError(f"the demo's verdict is {outcome.verdict.value}; see {folder}.")


def _story(events: int) -> Drill:
    def play(scene: Scene) -> tuple[Control, ...]:
        share = max(2000, events // 10)
        pipeline = scene.pipeline(scene.spec(source={"max_records": share}))
        plain = scene.plain(dies=True, options={"maxOffsetsPerTrigger": str(share)})
        scene.start(pipeline, plain, first=events)
        scene.wait_committed(1000)
        with scene.fault("the leader of a partition is killed", "the broker is back"):
            leader = leader_of(scene, scene.topic)
            scene.stack.cluster.node(leader).process.kill()
            scene.stack.cluster.wait_unregistered(leader)
            restore(scene, leader)
        with scene.fault("the driver is killed", "it is started again"):
            pipeline.kill()
        scene.wait_committed(1000, 90)
        scene.catch_up()
        scene.wait_plain()
        return (scene.plain_control(KILLED),)

    return Drill(
        NAME,
        "The leader of a partition and the driver of the pipeline are killed under load. No "
        "acknowledged event is lost, and none is in the table twice.",
        play,
    )


def _table(outcome: Outcome) -> Iterator[str]:
    yield ""
    yield f"{'':<22}{'events':>10}{'lost':>8}{'duplicated':>12}"
    rows = [("Tallygate", outcome.acknowledged, outcome.lost, outcome.duplicated)]
    rows += [(c.name, c.acknowledged, c.lost, c.duplicated) for c in outcome.controls]
    for name, events, lost, duplicated in rows:
        yield f"{name:<22}{events:>10,}{lost:>8,}{duplicated:>12,}"
    yield ""
    yield f"Audit: {outcome.audit.value}. Verdict: {outcome.verdict.value}."
