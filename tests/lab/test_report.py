"""The page shows everything that the drills left, breaks on nothing, and loads nothing."""

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tallygate.auditing.verdict import Verdict
from tallygate.lab.drills.outcome import Control, Event, Outcome, ProgressSample
from tallygate.lab.drills.report.page import write_report

LOSES = Control("acks=1", "A producer that waits for the leader only.", "lose", 41_003, 1_207, 0)
REPEATS = Control("foreachBatch", "Spark's own `foreachBatch`.", "repeat", 41_004, 0, 3_411)
SPARED = Control("auto-commit", "A consumer with auto-commit.", "lose or repeat", 41_005, 0, 0)

SAMPLES = tuple(
    ProgressSample(tick / 5, tick * 100, tick * 100 - 10 * (tick > 0), tick * 90)
    for tick in range(301)
)
EVENTS = (
    Event(0.4, "run", "pipeline starts"),
    Event(20.0, "fault", "SIGKILL broker 2"),
    Event(32.5, "heal", "broker 2 starts"),
    Event(33.0, "run", "pipeline starts again"),
)

VOID = {"meta"}


class Checker(HTMLParser):
    """Fails on a tag that is not closed where it must be, and keeps what is looked for."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.attributes: set[str] = set()
        self.tags: set[str] = set()
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self._keep(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._keep(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def _keep(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id":
                self.ids.append(value or "")
            if name == "href":
                self.targets.append(value or "")

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def _outcome(name: str = "leader-kill", **fields: object) -> Outcome:
    given = {
        "must_hold": "No acknowledged record is lost.",
        "acknowledged": 40_990,
        "audit": Verdict.VALID,
        "producer_seconds": 3.25,
        "pipeline_seconds": 14.04,
        "longest_wait": 15.5,
        "controls": (LOSES, REPEATS),
        "samples": SAMPLES,
        "events": EVENTS,
        "seconds": 71.8,
        **fields,
    }
    return Outcome(name, **given)  # type: ignore[arg-type]


def _written(
    folder: Path, *outcomes: Outcome, **options: object
) -> tuple[str, Checker, list[ElementTree.Element]]:
    path = write_report(outcomes, folder / "run", **options)  # type: ignore[arg-type]
    assert path == folder / "run" / "report.html"
    page = path.read_text(encoding="utf-8")
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert not checker.open
    assert len(checker.ids) == len(set(checker.ids))
    assert {target.removeprefix("#") for target in checker.targets} <= set(checker.ids)
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    return page, checker, [ElementTree.fromstring(chart) for chart in charts]


def _of_class(chart: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [each for each in chart.iter() if each.get("class") == name]


def test_the_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    page, checker, _ = _written(tmp_path, _outcome())
    assert not re.search(r"https?:|//[a-z]|@import|url\(", page)
    assert "src" not in checker.attributes
    assert not checker.tags & {"script", "link", "img", "iframe", "object", "embed"}


def test_the_verdict_the_figures_and_the_facts_come_first(tmp_path: Path) -> None:
    _, checker, _ = _written(
        tmp_path,
        _outcome("one"),
        _outcome("two", pipeline_seconds=17.3),
        title="Nightly drills",
        facts={"Kafka": "4.1.0", "Seed": "4711"},
    )
    top = checker.text.split("Verdicts")[0]
    assert "Nightly drills" in top
    assert "2 drills: 2 valid" in top
    assert "81,980" in top
    assert "4 of 4" in top
    assert "17.3 s two" in top
    assert "Kafka4.1.0" in top
    assert "Seed4711" in top


def test_each_drill_and_each_control_has_its_numbers(tmp_path: Path) -> None:
    page, checker, charts = _written(tmp_path, _outcome(), _outcome("driver-kill", seed=99))
    assert len(charts) == 2
    assert "2 drills: 2 valid" in checker.text
    rows = re.findall(r'<tr><th scope="row">.*?</tr>', page, re.DOTALL)
    assert len(rows) == 2
    for row in rows:
        for shown in ("40,990", "3.2 s", "14.0 s", "15.5 s", "1,207 lost", "3,411 duplicated"):
            assert shown in row
        assert row.count("failed as it must") == 2
    assert '<a href="#drill-leader-kill">' in rows[0]
    section = page.split('<article id="drill-driver-kill"')[1]
    for shown in ("41,003", "41,004", "1,207", "3,411", "71.8 s", "99", "No acknowledged record"):
        assert shown in section
    assert section.count("failed as it must") == 2
    assert "<code>foreachBatch</code>" in section
    assert "SIGKILL broker 2</td>" in section


def test_a_control_that_did_not_fail_is_called_out(tmp_path: Path) -> None:
    page, checker, _ = _written(tmp_path, _outcome(controls=(LOSES, SPARED)), _outcome("other"))
    assert "2 drills: 1 valid, 1 unknown" in checker.text
    top, table, section = re.split("<h2 id=.verdicts|<article", page)[:3]
    assert "The control auto-commit did NOT fail" in top
    assert "3 of 4" in top
    assert "0 lost, 0 duplicated" in table
    assert table.count("did NOT fail") == 1
    assert "The control auto-commit did NOT fail" in section
    assert "exactly once" not in checker.text


def test_what_was_lost_or_wrong_is_said_on_top_and_in_its_section(tmp_path: Path) -> None:
    bad = _outcome(
        lost=1_012, duplicated=3, audit=Verdict.INVALID, wrong=("It never committed again.",)
    )
    page, checker, _ = _written(tmp_path, bad, _outcome("fine"))
    assert "2 drills: 1 valid, 1 invalid" in checker.text
    top, _, section = re.split("<h2 id=.verdicts|<article", page)[:3]
    for part in (top, section):
        assert "Acknowledged records that were lost: 1,012." in part
    assert "Records that were duplicated: 3." in section
    assert "It never committed again." in section


def test_an_audit_that_is_not_valid_is_a_reason_of_its_own(tmp_path: Path) -> None:
    broken = _outcome(audit=Verdict.INVALID, unknown=("A log is missing.",))
    undecided = _outcome("other", audit=Verdict.UNKNOWN)
    _, checker, _ = _written(tmp_path, broken, undecided)
    assert "2 drills: 1 invalid, 1 unknown" in checker.text
    assert checker.text.count("The verdict of the audit is invalid.") == 2
    assert checker.text.count("The verdict of the audit is unknown.") == 2


def test_a_zero_that_no_audit_stands_behind_is_not_shown(tmp_path: Path) -> None:
    crashed = Outcome("disk-full", "It holds.", unknown=("The drill crashed: no port.",))
    page, checker, charts = _written(tmp_path, crashed)
    assert not charts
    assert "1 drill: 1 unknown" in checker.text
    assert "No sample was taken" in checker.text
    assert "The drill crashed: no port." in page.split("<article")[1]
    assert checker.text.count("not known, nothing was audited") == 2
    _, beside, _ = _written(tmp_path, crashed, _outcome())
    assert beside.text.count("not known for 1 drill") == 2
    row = re.search(r'<tr><th scope="row">.*?</tr>', page, re.DOTALL)
    assert row is not None
    assert row[0].count("not known") == 2
    assert row[0].count("not measured") == 3


def test_all_text_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script> & \"quoted\" \x1b[31m \udcff"
    page, checker, charts = _written(
        tmp_path,
        _outcome(
            evil,
            must_hold=evil,
            wrong=(evil,),
            unknown=(evil,),
            controls=(Control(evil, evil, f"lose {evil}", 1, 1, 0),),
            events=(Event(1.0, "fault", evil), Event(2.0, evil, evil)),
        ),
        title=evil,
        facts={evil: evil},
    )
    assert "script" not in checker.tags
    assert "&lt;script&gt;" in page
    assert "\x1b" not in page
    assert len(charts) == 1


def test_the_chart_shows_the_lines_the_lag_and_the_fault(tmp_path: Path) -> None:
    _, _, (chart,) = _written(tmp_path, _outcome())
    for name in ("produced", "acknowledged", "committed"):
        line = _of_class(chart, f"line {name}")[0].get("d") or ""
        assert line.count("L") == len(SAMPLES) - 1
    words = [each.text or "" for each in chart.iter("text")]
    for label in ("produced 30,000", "acknowledged 29,990", "committed 27,000"):
        assert label in words
    assert "lag, at most 3,000" in words
    assert "fault, 12.5 s" in words
    assert {"0", "10", "60", "10,000", "SIGKILL broker 2", "pipeline starts again"} <= set(words)
    ends = [each.get("d") for each in _of_class(chart, "pole")]
    shade = _of_class(chart, "fault")[0]
    left = float(shade.get("x") or 0)
    width = float(shade.get("width") or 0)
    assert any(end and end.startswith(f"M{left:.1f} ") for end in ends)
    assert any(end and end.startswith(f"M{left + width:.1f} ") for end in ends)
    title, desc = chart.find("title"), chart.find("desc")
    assert title is not None
    assert title.text == "Timeline of leader-kill"
    assert desc is not None
    assert "Fault from 20.0 s to 32.5 s." in (desc.text or "")


@pytest.mark.parametrize(
    "fields",
    [
        {"samples": ()},
        {"samples": (), "events": ()},
        {"samples": SAMPLES[:1], "events": ()},
        {"samples": (ProgressSample(0.0, 0, 0, 0),)},
        {"samples": (ProgressSample(0.0, 0, 0, 0), ProgressSample(0.2, 1, 1, 3))},
        {"samples": SAMPLES * 9},
        {"controls": ()},
        {"pipeline_seconds": None, "producer_seconds": None, "longest_wait": None},
        {"events": (Event(3.0, "fault", "word " * 400), Event(90.0, "heal", "x" * 4_000))},
        {"events": (Event(12.0, "heal", "without a fault"), Event(-1.0, "other", ""))},
        {"events": tuple(Event(i / 10, "note", f"event {i}") for i in range(600))},
        {"name": "", "must_hold": ""},
    ],
)
def test_odd_outcomes_do_not_break_the_page(tmp_path: Path, fields: dict[str, object]) -> None:
    page, _, charts = _written(tmp_path, _outcome(**fields))  # type: ignore[arg-type]
    assert len(charts) == bool(fields.get("samples", SAMPLES))
    assert not re.search(r"\bnan\b|\binf\b", page)


def test_none_and_many_drills(tmp_path: Path) -> None:
    _, checker, _ = _written(tmp_path)
    assert "No drill ran" in checker.text
    page, checker, charts = _written(tmp_path, *[_outcome("random mix", seed=n) for n in range(30)])
    assert "30 drills: 30 valid" in checker.text
    assert len(charts) == 30
    assert 'href="#drill-random-mix-30"' in page
