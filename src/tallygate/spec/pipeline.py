"""A pipeline as data: one model, written in Python or in YAML."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PrivateAttr, SkipValidation, Tag, model_validator
from pydantic.json_schema import SkipJsonSchema

from tallygate.spec.functions import is_reference
from tallygate.spec.part import Part, PlacedError, refusing
from tallygate.spec.places import line_of
from tallygate.spec.sinks import Delivery, Foreach, Sink
from tallygate.spec.sources import Files, Kafka, Rate, Socket, Source
from tallygate.spec.steps import Static, Step
from tallygate.units import interval_ms

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
VIEW = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SPLITS = ("minpartitions", "maxrecordsperpartition")
"""Options of Spark's Kafka source by which several tasks share a partition."""
PREVIOUS = "previous"
"""What a step without a name is called by the step after it."""
HARMLESS = {
    "failondataloss": "true",
    "kafka.isolation.level": "read_committed",
    "mode": "failfast",
}
"""Options on which the delivery rests, and what they always are."""
INSTEAD = {
    "failondataloss": "lost records would be skipped in silence; to go on without them, start with "
    "--accept-loss",
    "kafka.isolation.level": "records of aborted transactions were never sent, and are not read",
    "starting": "`start` says where a new pipeline begins",
    "subscribe": "`topic` or `pattern` says what is read",
    "assign": "`topic` or `pattern` says what is read",
}
"""Options of Spark's Kafka source, or how they begin, that are not the user's to set, and why."""
INSTEAD_OF_FILES = {
    "mode": "a line that does not fit stops the pipeline, and is neither dropped nor made null",
    "maxfileage": "older files would be skipped in silence",
    "ignoremissingfiles": "what is gone would be skipped in silence",
    "ignorecorruptfiles": "what cannot be read would be skipped in silence",
    "filenameonly": "files of one name in two folders would be taken for one",
    "maxfilespertrigger": "`max_files` says how many make a batch",
}
"""The same of its sources of files."""


class DeadLetters(Part):
    """How many records may be unfit before the pipeline stops."""

    limit: int | None = Field(None, ge=0, description="Stop when there are more than this many.")
    share: float | None = Field(
        None, ge=0, le=1, description="Stop when more than this share of a batch are unfit."
    )
    late: bool = Field(
        False, description="Whether records that come too late for the watermark are kept too."
    )


def _kind(transform: Any) -> str:
    if callable(transform):
        return "function"
    return "text" if isinstance(transform, str) or transform is None else "steps"


Transform = Annotated[
    Annotated[str | None, Tag("text")]
    | Annotated[tuple[Step, ...], Tag("steps")]
    | SkipJsonSchema[Annotated[Callable[..., Any], SkipValidation, Tag("function")]],
    Discriminator(_kind),
]


class PipelineSpec(Part):
    """source → transform → sink, with a delivery."""

    name: str = Field(description="Names the pipeline in the ledger: letters, digits, `._-`.")
    source: Source | None = Field(None, description="Where records come from.")
    sources: dict[str, Source] = Field(
        {}, description="Several sources by name, instead of one; each is a view of its name."
    )
    static: dict[str, Static] = Field(
        {}, description="Tables that do not stream, by name; each is a view of its name."
    )
    transform: Transform = Field(
        None,
        description="SQL over the view `source`, a function of DataFrames as `module:function`, "
        "or a list of steps.",
    )
    parameters: dict[str, str | int | float | bool] = Field(
        {}, description="Values for `:name` in the SQL."
    )
    sink: Sink = Field(description="Where rows go.")
    delivery: Delivery = Field("exactly-once", description="What a crash may do to a record.")
    trigger: Annotated[str, refusing(interval_ms, "as fast as possible")] = Field(
        "as fast as possible",
        description="When batches start: `as fast as possible`, or an interval such as `10s`.",
    )
    checkpoint: str | None = Field(None, description="The folder of Spark's checkpoint.")
    dead_letters: DeadLetters = DeadLetters()
    on_error: Literal["stop", "dead-letter"] = Field(
        "stop",
        description="What is done when the transform fails on a record: `stop` says which one it "
        "is, `dead-letter` keeps it with its cause and goes on.",
    )

    _file: Path | None = PrivateAttr(None)

    def where(self, *place: str | int) -> str:
        """A place in the pipeline for messages, with its file and line if it came from one."""
        name = ".".join(str(part) for part in place)
        if self._file is None:
            return f"{name} of {self.name!r}"
        line = line_of(self._file, place)
        return f"{self._file}{f', line {line}' if line else ''}: {name}"

    def place_of(self, stream: str) -> tuple[str, ...]:
        """Where a source stands in the pipeline, by the name of its view."""
        return ("source",) if self.source is not None else ("sources", stream)

    @property
    def streams(self) -> dict[str, Kafka | Files | Socket | Rate]:
        """Every source by the name of its view."""
        return {"source": self.source} if self.source is not None else self.sources

    @property
    def topics_read(self) -> dict[str, Kafka]:
        """The sources that are topics, which alone can be read again."""
        return {name: each for name, each in self.streams.items() if isinstance(each, Kafka)}

    @property
    def refers(self) -> bool:
        """Whether it names functions or classes of modules."""
        steps = self.transform if isinstance(self.transform, tuple) else ()
        named = [self.transform, *(step.function for step in steps)]
        if isinstance(self.sink, Foreach):
            named.append(self.sink.foreach)
        return any(isinstance(each, str) and is_reference(each) for each in named)

    @property
    def needs_delta(self) -> bool:
        """Whether its Spark session must have Delta."""
        sides = any(side.delta is not None for side in self.static.values())
        return sides or self.sink.needs_delta

    @model_validator(mode="after")
    def _fits(self) -> "PipelineSpec":
        if not NAME.fullmatch(self.name):
            said = f"{self.name!r} is not a name: use letters, digits, dots, dashes, underscores"
            raise PlacedError(said, "name")
        if (self.source is None) == (not self.sources):
            raise ValueError("needs either source or sources")
        if self.sources and self.transform is None:
            raise ValueError(
                "has several sources, so it needs a transform that brings them together"
            )
        self._check_names()
        self.sink.check_delivery(self.delivery)
        if any(isinstance(source, Socket) for source in self.streams.values()):
            self._check_socket()
        elif not self.sink.keeps_ledger and self.delivery == "at-most-once":
            raise ValueError(
                "writes to a sink that keeps no ledger, where a batch comes again after a crash; "
                "say `delivery: at-least-once`"
            )
        if self.on_error == "dead-letter":
            self._check_on_error()
        self._check_sources()
        if self.static and self.transform is None:
            raise ValueError("has static sides and no transform that uses them")
        return self

    def _check_on_error(self) -> None:
        if not self.sink.keeps_ledger:
            why = "the sink keeps no ledger, with which a dead letter would count"
        elif self.delivery == "at-most-once":
            why = "at-most-once saves offsets first, so a batch that fails is not written again"
        else:
            return
        raise PlacedError(f"is `dead-letter`, and {why}; leave it out", "on_error")

    def _check_sources(self) -> None:
        topics: set[str] = set()
        for name, source in self.streams.items():
            if not isinstance(source, Kafka):
                if len(self.streams) > 1:
                    raise ValueError(f"has several sources, which must all be Kafka; {name} is not")
                if isinstance(source, Files):
                    _check_options(name, source.options, INSTEAD_OF_FILES)
                continue
            for topic in source.topic:
                if topic in topics:
                    raise ValueError(f"reads topic {topic!r} twice; one position stands for both")
                topics.add(topic)
            _check_options(name, source.options, INSTEAD)
            splits = [each for each in source.options if each.lower() in SPLITS]
            if splits and self.sink.is_topic:
                raise ValueError(
                    "writes to a topic, where one task at a time has the records of a partition; "
                    f"remove the option {splits[0]} of {name}, which shares them out"
                )

    def _check_socket(self) -> None:
        """A line from a socket is gone once it was read: nothing can be promised but that it does
        not come twice, and no ledger can say what was lost."""
        if self.delivery != "at-most-once":
            raise ValueError(
                f"reads a socket, which cannot be read twice, so {self.delivery} is impossible; "
                "set `delivery: at-most-once`, or put the lines into Kafka first"
            )
        if self.sink.keeps_ledger:
            raise ValueError(
                "reads a socket, whose lines no ledger can count; write them to console, memory or "
                "foreach, or put them into Kafka first"
            )

    def _check_names(self) -> None:
        steps = self.transform if isinstance(self.transform, tuple) else ()
        named: list[tuple[str, tuple[str | int, ...]]] = [
            *((name, self.place_of(name)) for name in self.streams),
            *((name, ("static", name)) for name in self.static),
            *((step.name, ("transform", n, "name")) for n, step in enumerate(steps) if step.name),
        ]
        taken: set[str] = set()
        for name, place in named:
            if not VIEW.fullmatch(name):
                said = f"{name!r} cannot name a view: use letters, digits, underscores"
                raise PlacedError(said, *place)
            if name == PREVIOUS:
                raise PlacedError(
                    f"cannot be called {name!r}, which stands for the step before; give it "
                    "another name",
                    *place,
                )
            if name in taken:
                raise PlacedError(
                    f"is called {name!r} like another view before it; give one of the two another "
                    "name",
                    *place,
                )
            taken.add(name)


def _check_options(name: str, options: Mapping[str, str], instead: Mapping[str, str]) -> None:
    """Refuse options that would undo the delivery, or say something else than the fields do."""
    for option, value in options.items():
        given = option.lower()
        if HARMLESS.get(given) == value.lower():
            continue
        for taken, why in instead.items():
            if given.startswith(taken):
                raise ValueError(f"has the option {option} of {name}: {why}; remove the option")
