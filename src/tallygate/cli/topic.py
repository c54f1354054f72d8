"""`tallygate topic`: the topics of any cluster."""

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallygate.cli.options import (
    Output,
    pairs,
    resolve_connection,
    with_settings,
)
from tallygate.cli.output import Format, progress_display, show, show_table
from tallygate.errors import ConfigError
from tallygate.units import duration_ms, human_size, size_bytes

if TYPE_CHECKING:
    from tallygate.kafka.topic_state import Topic
    from tallygate.kafka.topics import Topics
    from tallygate.settings import Settings

app = typer.Typer(help="Create, look at, change and move topics.", no_args_is_help=True)

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
Partitions = Annotated[int | None, typer.Option("--partitions", help="How many partitions.")]
Replication = Annotated[
    int | None, typer.Option("--replication", help="How many replicas of each partition.")
]
MinIsr = Annotated[
    int | None,
    typer.Option("--min-isr", help="How many replicas must be in sync for a write with acks=all."),
]
Retention = Annotated[
    str | None, typer.Option("--retention", help="Keep records for: 7d, 12h, 30m, forever.")
]
RetentionSize = Annotated[
    str | None,
    typer.Option("--retention-size", help="Keep at most this much a partition: 1GiB, unlimited."),
]
Compact = Annotated[
    bool | None,
    typer.Option("--compact/--no-compact", help="Keep the newest record of each key for good."),
]
Configs = Annotated[
    list[str] | None,
    typer.Option("--topic-config", metavar="NAME=VALUE", help="Any topic config of Kafka's."),
]


@app.command()
@with_settings
def create(
    topic: TopicName,
    partitions: Partitions = None,
    replication: Replication = None,
    min_isr: MinIsr = None,
    retention: Retention = None,
    retention_size: RetentionSize = None,
    compact: Compact = None,
    topic_config: Configs = None,
    *,
    settings: "Settings",
) -> None:
    """Create a topic (1 partition and up to 3 replicas by default)."""
    configs = _configs(min_isr, retention, retention_size, compact, topic_config)
    topics = _topics(settings)
    topics.create(
        topic,
        partitions=1 if partitions is None else partitions,
        replication=replication,
        configs=configs,
    )
    made = topics.describe(topic, sizes=False)
    print(f"Topic {topic!r}: {len(made.partitions)} partitions, replication {made.replication}.")


@app.command("list")
@with_settings
def list_(
    internal: Annotated[bool, typer.Option("--internal", help="Kafka's own topics too.")] = False,
    output: Output = Format.table,
    *,
    settings: "Settings",
) -> None:
    """List the topics."""
    topics = _topics(settings)
    found = topics.all(internal=internal)
    rows = [
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "replication": topic.replication,
            "min_in_sync": topic.min_in_sync,
            "records": topic.records,
            "problems": sorted({flag for p in topic.partitions for flag in p.flags}),
        }
        for topic in found
    ]
    columns = {
        "topic": "topic",
        "partitions": "partitions",
        "replication": "replication",
        "min_in_sync": "min ISR",
        "records": "offsets held",
        "problems": "problems",
    }
    show(rows, output, lambda: show_table(rows, columns) if rows else print("No topics."))


@app.command()
@with_settings
def describe(
    topic: TopicName,
    output: Output = Format.table,
    *,
    settings: "Settings",
) -> None:
    """Show a topic's partitions: leaders, replicas, ISR, offsets, size, and what is wrong."""
    topics = _topics(settings)
    found = topics.describe(topic)
    value = {
        "topic": found.name,
        "replication": found.replication,
        "min_in_sync": found.min_in_sync,
        "configs": dict(found.configs),
        "partitions": [_partition(partition) for partition in found.partitions],
    }
    show(value, output, lambda: _show_topic(found, value))


@app.command()
@with_settings
def alter(
    topic: TopicName,
    partitions: Partitions = None,
    replication: Replication = None,
    min_isr: MinIsr = None,
    retention: Retention = None,
    retention_size: RetentionSize = None,
    compact: Compact = None,
    topic_config: Configs = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A topic config to set back to the broker's default."),
    ] = None,
    *,
    settings: "Settings",
) -> None:
    """Change a topic; configs and partitions change together or not at all."""
    configs: dict[str, str | None] = {
        **_configs(min_isr, retention, retention_size, compact, topic_config),
        **dict.fromkeys(unset or ()),
    }
    if partitions is None and replication is None and not configs:
        raise ConfigError("nothing to alter was given; `tallygate topic alter --help` lists what.")
    topics = _topics(settings)
    topics.alter(topic, partitions=partitions, replication=replication, configs=configs)
    print(f"Topic {topic!r} is altered.")


@app.command()
@with_settings
def delete(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="The topics.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    *,
    settings: "Settings",
) -> None:
    """Delete topics and all their records."""
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("deleting topics needs --yes where there is no terminal to ask on.")
        typer.confirm(f"Delete {', '.join(topics)} and all records?", abort=True)
    _topics(settings).delete(topics)
    print(f"Deleted: {', '.join(topics)}.")


@app.command()
@with_settings
def reassign(
    topic: TopicName,
    brokers: Annotated[
        str | None,
        typer.Option(help="The brokers to hold the topic, as 1,2,3.", show_default="all"),
    ] = None,
    replication: Replication = None,
    throttle: Annotated[
        str | None, typer.Option(help="Move at most this much a second: 50MB.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the data has moved.")
    ] = True,
    *,
    settings: "Settings",
) -> None:
    """Move a topic's replicas, as onto a new broker or off an old one."""
    try:
        numbers = [int(number) for number in brokers.split(",")] if brokers else None
    except ValueError:
        raise ConfigError(f"--brokers {brokers!r} must be numbers, as 1,2,3.") from None
    topics = _topics(settings)
    with progress_display() as progress:
        target = topics.reassign(
            topic,
            numbers,
            replication=replication,
            throttle=size_bytes(throttle) if throttle else None,
            timeout=600 if wait else None,
            progress=progress,
        )
    rows = [{"partition": number, "replicas": replicas} for number, replicas in target.items()]
    show_table(rows, {"partition": "partition", "replicas": "replicas"})


@app.command()
def advise(
    target: Annotated[float, typer.Option(help="The peak to carry, in MB/s or records/s.")],
    consumer: Annotated[
        float, typer.Option(help="What one consumer was measured to manage, in the same unit.")
    ],
    producer: Annotated[
        float | None, typer.Option(help="What one partition was measured to take.")
    ] = None,
    brokers: Annotated[int, typer.Option(help="How many brokers there are.")] = 3,
    replication: Annotated[int, typer.Option(help="The replication to plan with.")] = 3,
    headroom: Annotated[float, typer.Option(help="A factor for growth and catching up.")] = 1.5,
    output: Output = Format.table,
) -> None:
    """Advise how many partitions a topic should have, with the reasoning."""
    from tallygate.kafka.placement import advise as reckon

    advice = reckon(
        target,
        consumer,
        producer=producer,
        brokers=brokers,
        replication=min(replication, brokers),
        headroom=headroom,
    )

    def table() -> None:
        print(f"{advice.partitions} partitions.")
        for reason in advice.reasoning:
            print(f"  - {reason}")

    value = {"partitions": advice.partitions, "reasoning": list(advice.reasoning)}
    show(value, output, table)


def _topics(settings: "Settings") -> "Topics":
    from tallygate.kafka.topics import Topics

    return Topics(resolve_connection(settings), settings)


def _configs(
    min_isr: int | None,
    retention: str | None,
    retention_size: str | None,
    compact: bool | None,
    native: list[str] | None,
) -> dict[str, str]:
    """The flags as Kafka's topic configs; a native one wins over its flag."""
    configs = {}
    if min_isr is not None:
        configs["min.insync.replicas"] = str(min_isr)
    if retention is not None:
        configs["retention.ms"] = str(duration_ms(retention))
    if retention_size is not None:
        configs["retention.bytes"] = str(size_bytes(retention_size))
    if compact is not None:
        limited = retention is not None or retention_size is not None
        both = "compact,delete" if limited else "compact"
        configs["cleanup.policy"] = both if compact else "delete"
    return {**configs, **pairs(native, "--topic-config")}


def _partition(partition: Any) -> dict[str, Any]:
    fields = dataclasses.asdict(partition)
    del fields["min_in_sync"]
    return {
        **{key: list(v) if isinstance(v, tuple) else v for key, v in fields.items()},
        "preferred_leader": partition.preferred_leader,
        "flags": list(partition.flags),
    }


def _show_topic(topic: "Topic", value: dict[str, Any]) -> None:
    size = "" if topic.size is None else f", {human_size(topic.size)}"
    print(
        f"Topic {topic.name!r}: {len(topic.partitions)} partitions, replication "
        f"{topic.replication}, min ISR {topic.min_in_sync}{size}"
    )
    for key, text in sorted(topic.configs.items()):
        print(f"  {key} = {text}")
    rows = [
        {**p, "size": "-" if p["size"] is None else human_size(p["size"])}
        for p in value["partitions"]
    ]
    columns = {
        "id": "partition",
        "leader": "leader",
        "preferred_leader": "preferred",
        "replicas": "replicas",
        "in_sync": "ISR",
        "begin": "begin",
        "end": "end",
        "size": "size",
        "flags": "problems",
    }
    show_table(rows, columns)
