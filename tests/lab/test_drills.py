"""Some drills played for real, and their twins: without the guarantee a drill must see it."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tallygate.auditing.verdict import Verdict
from tallygate.errors import ConfigError
from tallygate.lab.drills.catalogue import DRILLS, chosen
from tallygate.lab.drills.drill import Drill
from tallygate.lab.drills.drill_run import Scene
from tallygate.lab.drills.outcome import Control, Outcome
from tallygate.lab.drills.running import play_all
from tallygate.settings import Settings
from tallygate.waiting import wait_until

pytestmark = pytest.mark.timeout(1200)  # the first test waits for all drills

PLAYED = ("leader-kill", "commit-cut", "bad-records", "end-txn-delayed")


def _at_least_once(scene: Scene) -> tuple[Control, ...]:
    """The driver is killed between the rows and the offsets of a batch, which are saved apart."""
    pipeline = scene.pipeline(scene.spec(delivery="at-least-once"))
    scene.unaided = (pipeline,)
    scene.start(pipeline)
    with scene.fault("killed between rows and offsets", "left in peace"):
        pipeline.stop()
        starts = pipeline.starts
        pipeline.start({"TALLYGATE_FAIL_AT": "committed@*"})
        wait_until(lambda: pipeline.starts > starts + 1, 90, "it was not killed")
    scene.wait_committed(100)
    scene.catch_up()
    return ()


def _unharmed() -> Control:
    return Control("unharmed", "Nothing was done to it.", "lose", 100, 0, 0)


def _no_rows(scene: Scene) -> tuple[Control, ...]:
    """A transform that lets nothing through: whatever the fault was, it could do no harm."""
    nothing = "SELECT * FROM source WHERE id < 0"
    scene.start(scene.pipeline(scene.spec(transform=nothing)))
    scene.catch_up()
    scene.held = Counter(scene.workload.acknowledged)
    return ()


def _own_account(scene: Scene) -> tuple[Control, ...]:
    """It compares what is held by itself, and a record of the load is not."""
    scene.create_topic()
    scene.workload.send(10)
    held = Counter(scene.workload.acknowledged - {3})
    scene.held, scene.report = held, scene.compared(held)
    return ()


def _crash(_: Scene) -> tuple[Control, ...]:
    raise RuntimeError("the drill itself broke")


@pytest.fixture(scope="module")
def outcomes(
    settings: Settings, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Outcome]]:
    drills = [
        Drill("crash", "A drill that breaks has shown nothing.", _crash),
        *(DRILLS[name] for name in PLAYED),
        Drill("no-rows", "Nothing is lost.", _no_rows),
        Drill("own-account", "Nothing is lost.", _own_account),
        Drill("twin", "Each record is there once.", _at_least_once),
    ]
    folder = tmp_path_factory.mktemp("drills")
    played = play_all(drills, folder, settings, lambda _: None)
    yield {outcome.name: outcome for outcome in played}
    assert {path.name for path in folder.iterdir()} == {drill.name for drill in drills}


@pytest.mark.parametrize("name", PLAYED)
def test_a_drill_is_valid_and_its_control_fails(outcomes: dict[str, Outcome], name: str) -> None:
    outcome = outcomes[name]
    assert outcome.verdict is Verdict.VALID, (outcome.wrong, outcome.unknown, outcome.controls)
    assert (outcome.lost, outcome.duplicated) == (0, 0)
    assert outcome.acknowledged > 500
    assert all(control.failed for control in outcome.controls)
    assert outcome.controls


def test_what_happened_is_kept(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["leader-kill"]
    kinds = [event.kind for event in outcome.events]
    assert kinds.index("fault") < kinds.index("heal")
    assert outcome.samples[-1].committed == outcome.acknowledged
    assert outcome.producer_seconds and outcome.pipeline_seconds
    assert outcome.longest_wait


def test_without_the_guarantee_the_drill_is_invalid(outcomes: dict[str, Outcome]) -> None:
    twin = outcomes["twin"]
    assert twin.verdict is Verdict.INVALID
    assert twin.duplicated > 0
    assert any("duplicate" in text for text in twin.wrong), "and the audit sees it too"


def test_a_pipeline_that_was_to_go_on_by_itself_and_did_not_is_wrong(
    outcomes: dict[str, Outcome],
) -> None:
    assert "the pipeline was to go on by itself, but ended (SIGKILL)" in outcomes["twin"].wrong


def test_a_drill_that_compares_by_itself_is_invalid_by_its_own_account(
    outcomes: dict[str, Outcome],
) -> None:
    outcome = outcomes["own-account"]
    assert outcome.verdict is Verdict.INVALID
    assert (outcome.lost, outcome.duplicated) == (1, 0)
    assert outcome.wrong == ("the audit found 1 missing",)
    assert not outcome.unknown


def test_a_drill_that_crashed_is_unknown(outcomes: dict[str, Outcome]) -> None:
    crash = outcomes["crash"]
    assert crash.verdict is Verdict.UNKNOWN
    assert "the drill itself broke" in crash.unknown[0]


def test_a_drill_in_which_no_row_was_written_is_unknown(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["no-rows"]
    assert outcome.verdict is Verdict.UNKNOWN
    assert "no row has reached the sink" in outcome.unknown[0]


def test_a_folder_of_an_earlier_run_is_refused(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "executor-died").touch()
    with pytest.raises(ConfigError, match="each run needs a folder of its own"):
        next(play_all([DRILLS["leader-kill"]], tmp_path, settings, lambda _: None))


def test_a_drill_that_is_named_twice_is_played_once() -> None:
    assert len(chosen(["leader-kill", "leader-kill"], None, 1)) == 1


def test_a_control_that_does_not_fail_makes_a_drill_unknown() -> None:
    fine = Outcome("d", "…", audit=Verdict.VALID)
    assert fine.verdict is Verdict.VALID
    shown = Outcome("d", "…", audit=Verdict.VALID, controls=(_unharmed(),))
    assert shown.verdict is Verdict.UNKNOWN
    assert Outcome("d", "…", audit=Verdict.VALID, lost=1).verdict is Verdict.INVALID
    assert Outcome("d", "…").verdict is Verdict.UNKNOWN, "nobody has audited it"


def test_an_outcome_is_kept_and_read_back(tmp_path: Path) -> None:
    outcome = Outcome("d", "…", audit=Verdict.VALID, controls=(_unharmed(),), lost=2)
    outcome.keep(tmp_path)
    assert Outcome.kept(tmp_path) == outcome


def test_the_mix_is_made_of_seeds() -> None:
    assert [drill.name for drill in chosen(["mix"], 7, 3)] == ["mix-7", "mix-8", "mix-9"]
    assert len(chosen(["mix", "leader-kill"], None, 2)) == 3


def test_an_unknown_drill_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'leader-kill'"):
        chosen(["leader-kil"], None, 1)
