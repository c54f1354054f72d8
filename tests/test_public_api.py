"""What is exported, what is documented, and which way imports go."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tallygate

SOURCE = Path(tallygate.__file__).parent
ROOT = SOURCE.parent.parent

# Lower parts never import higher ones. Parts on one line may import each other.
LAYERS = (
    (
        "errors",
        "waiting",
        "paths",
        "units",
        "progress",
        "exchange",
        "quoting",
        "pool",
        "collecting",
    ),
    ("process", "ports", "settings", "failpoints"),
    ("records.record", "records.files", "records.avro", "records.shape"),
    (
        "records.decoding",
        "ledger.ranges",
        "ledger.letters",
        "ledger.runs",
        "spec.part",
        "spec.places",
        "spec.functions",
    ),
    ("spec.sources", "spec.sinks", "spec.steps"),
    ("spec.pipeline",),
    ("spec.loading",),
    ("guard", "java"),
    ("spark.jars", "spark.daemon", "spark.held", "spark.reading", "spark.saying", "spark.whole"),
    ("spark.classes",),
    ("kafka.connection", "kafka.properties"),
    ("kafka.clients", "kafka.node", "kafka.placement", "kafka.tools"),
    ("postgres.connecting", "postgres.arrow", "postgres.plain"),
    ("kafka.cluster", "kafka.groups", "kafka.topics", "kafka.producer", "postgres.server"),
    ("kafka.warming",),
    (
        "kafka.fetching",
        "kafka.loader",
        "kafka.reader",
        "postgres.reading",
        "postgres.schema",
        "consumer.retry",
        "consumer.dedup",
    ),
    ("consumer.delivery",),
    ("consumer.deliveries", "consumer.into_kafka", "consumer.into_postgres"),
    ("stack",),
    ("consumer.run", "consumer.dead_letters"),
    ("spark.session", "spark.plan", "spark.checkpoint", "spark.standalone"),
    ("spark.ranged", "spark.states", "spark.warming"),
    ("spark.refusals",),
    ("ledger.postgres", "ledger.group"),
    ("sinks.sink", "sinks.local_run"),
    ("sinks.store", "sinks.tasks"),
    ("sinks.plain", "sinks.rows"),
    ("sinks.postgres.nested", "sinks.postgres.table", "sinks.postgres.writer"),
    ("sinks.postgres.staging",),
    ("sinks.postgres.sink",),
    ("sinks.postgres.store",),
    ("sinks.kafka.sending",),
    ("sinks.kafka.letters", "sinks.kafka.limits"),
    ("sinks.kafka.writer",),
    ("sinks.kafka.sink",),
    ("sinks.kafka.store",),
    ("sinks.delta.entry", "sinks.delta.letters", "sinks.delta.table"),
    ("sinks.delta.compaction",),
    ("sinks.delta.ledger",),
    ("sinks.delta.sink",),
    ("sinks.delta.store",),
    ("sinks.parquet.entry",),
    ("sinks.parquet.folder",),
    ("sinks.parquet.columns", "sinks.parquet.ledger", "sinks.parquet.letters"),
    ("sinks.parquet.rows",),
    ("sinks.parquet.compaction", "sinks.parquet.writer"),
    ("sinks.parquet.sink",),
    ("sinks.parquet.store",),
    ("pipeline.lateness", "pipeline.schema"),
    (
        "pipeline.source",
        "pipeline.engine",
        "pipeline.transform",
        "pipeline.stores",
        "pipeline.static",
    ),
    ("pipeline.job",),
    ("pipeline.losses",),
    ("pipeline.launch",),
    ("pipeline.running",),
    ("pipeline.pipeline", "pipeline.status", "pipeline.init"),
    ("pipeline.rebuild",),
    ("audit.verdict", "audit.records", "audit.unsteady", "audit.hashing"),
    ("audit.comparable",),
    ("audit.claims", "audit.comparing", "audit.digests"),
    (
        "audit.groups",
        "audit.history",
        "audit.tallying",
        "audit.readings",
        "audit.recompute",
        "audit.scope",
    ),
    ("audit.delta", "audit.kafka", "audit.parquet", "audit.postgres", "audit.watermarks"),
    ("audit.case", "audit.evidence"),
    ("audit.contents", "audit.quick"),
    ("audit.coordinates",),
    ("audit.checking",),
    ("audit.audit", "audit.trace"),
    ("drills.outcome", "drills.subject", "drills.jobs", "drills.proxy", "drills.ground"),
    ("drills.workload",),
    ("drills.report.markup", "drills.report.flags", "drills.report.intervals"),
    ("drills.report.chart",),
    ("drills.report.section",),
    ("drills.report.overview",),
    ("drills.report.page",),
    ("drills.plain", "drills.member", "drills.gauge"),
    ("drills.scene",),
    ("drills.drill",),
    (
        "drills.faults.brokers",
        "drills.faults.drivers",
        "drills.faults.records",
        "drills.faults.clocks",
    ),
    ("drills.faults.consumers", "drills.faults.database", "drills.faults.network"),
    ("drills.faults.mix",),
    ("drills.catalogue", "drills.running"),
    ("bench.course", "bench.meter", "bench.pagecache", "bench.targets"),
    ("bench.findings", "bench.stage"),
    ("bench.contender", "bench.programs", "bench.spark"),
    ("bench.flink", "bench.limits", "bench.loops", "bench.ours", "bench.quix"),
    ("bench.growth", "bench.latency", "bench.recovery"),
    ("bench.contenders", "bench.plots"),
    ("bench.bench",),
    ("bench.report",),
    ("bench.peers.reading",),
    (
        "bench.peers.copy_loop",
        "bench.peers.flink_job",
        "bench.peers.quix_job",
        "bench.peers.transactional_loop",
    ),
    ("doctor", "demo"),
    ("cli.output",),
    ("cli.options",),
    (
        "cli.audit",
        "cli.bench",
        "cli.cluster",
        "cli.consume",
        "cli.dead_letters",
        "cli.drill",
        "cli.lake",
        "cli.machine",
        "cli.pipeline",
        "cli.produce",
        "cli.stack",
        "cli.topic",
    ),
    ("cli",),
    ("__main__",),
)


def _modules() -> dict[str, Path]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path
    return found


def _imports(path: Path) -> set[str]:
    """The modules of this package that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {
                a.name.removeprefix("tallygate.") for a in node.names if "tallygate." in a.name
            }
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tallygate"):
            base = (node.module or "").removeprefix("tallygate").lstrip(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".lstrip(".")
                names.add(inner if inner in _modules() else base)
    return names - {""}


def test_the_exported_names() -> None:
    assert set(tallygate.__all__) == {
        "Cluster",
        "Connection",
        "DeadLetters",
        "Dedup",
        "Delta",
        "Files",
        "Kafka",
        "KafkaSink",
        "Output",
        "Parquet",
        "Pipeline",
        "Postgres",
        "Producer",
        "Record",
        "Retry",
        "Settings",
        "Stack",
        "TallygateError",
        "Topics",
        "consume",
        "session",
        "write_stream",
    }
    for name in tallygate.__all__:
        assert getattr(tallygate, name) is not None
    assert set(tallygate.__all__) <= set(dir(tallygate))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        tallygate.nonsense  # noqa: B018


def test_what_is_exported_is_documented() -> None:
    documented = (ROOT / "docs" / "python.md").read_text()
    for name in tallygate.__all__:
        assert f"`{name}`" in documented, f"docs/python.md does not mention {name}"


def test_importing_the_package_is_quick() -> None:
    program = "import sys, tallygate; print([m for m in ('pyspark', 'psutil') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_module_has_a_layer() -> None:
    packages = {
        "",
        "audit",
        "bench",
        "bench.peers",
        "consumer",
        "drills",
        "drills.faults",
        "drills.report",
        "kafka",
        "ledger",
        "pipeline",
        "postgres",
        "records",
        "sinks",
    }
    packages |= {"sinks.delta", "sinks.kafka", "sinks.parquet", "sinks.postgres", "spark", "spec"}
    layered = {name for layer in LAYERS for name in layer}
    assert set(_modules()) - packages == layered


def test_imports_go_one_way() -> None:
    level = {name: index for index, layer in enumerate(LAYERS) for name in layer}
    wrong = [
        f"{name} imports {imported}"
        for name, path in _modules().items()
        for imported in _imports(path)
        if name in level and imported in level and level[imported] > level[name]
    ]
    assert not wrong


def test_every_module_says_why_it_exists() -> None:
    for name, path in _modules().items():
        assert ast.get_docstring(ast.parse(path.read_text())), f"{name} has no docstring"
