"""Kafka's own Java tools, for the few requests that librdkafka cannot make.

These are: moving replicas (AlterPartitionReassignments) and the size of partitions
(DescribeLogDirs). Each call starts a JVM, which takes about 0.7 s.
"""

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tallygate.errors import TopicError, UnreachableError
from tallygate.jvm.jars import jar_paths
from tallygate.jvm.java import find_java
from tallygate.kafka.connection import Connection
from tallygate.kafka.properties import java_properties
from tallygate.settings import Settings

TIMEOUT = 60
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"

Assignment = Mapping[tuple[str, int], Sequence[int]]


@dataclass(frozen=True)
class Tools:
    connection: Connection
    settings: Settings

    def sizes(self, topics: Sequence[str]) -> dict[tuple[str, int], int]:
        """The bytes on disk of each partition, as its largest replica has them."""
        said = self._run(
            "org.apache.kafka.tools.LogDirsCommand", "--describe", "--topic-list", ",".join(topics)
        )
        described = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
        sizes: dict[tuple[str, int], int] = {}
        for broker in described["brokers"]:
            for folder in broker["logDirs"]:
                for replica in folder["partitions"]:
                    topic, _, partition = replica["partition"].rpartition("-")
                    key = (topic, int(partition))
                    sizes[key] = max(sizes.get(key, 0), replica["size"])
        return sizes

    def reassign(self, assignment: Assignment, throttle: int | None = None) -> None:
        """Start moving replicas; Kafka carries on by itself."""
        limit = ("--throttle", str(throttle)) if throttle else ()
        self._reassign(assignment, "--execute", *limit)

    def finish_reassign(self, assignment: Assignment) -> None:
        """Lift the throttle of a move that is done."""
        self._reassign(assignment, "--verify")

    def _reassign(self, assignment: Assignment, *options: str) -> None:
        plan = {
            "version": 1,
            "partitions": [
                {"topic": topic, "partition": partition, "replicas": list(replicas)}
                for (topic, partition), replicas in assignment.items()
            ],
        }
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(plan, file)
            file.flush()
            self._run(
                "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
                "--reassignment-json-file",
                file.name,
                *options,
            )

    def _allowed_urls(self) -> list[str]:
        """Kafka 4 asks for tokens only where this property says it may."""
        url = self.connection.properties.get("sasl.oauthbearer.token.endpoint.url")
        return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}"] if url else []

    def _run(self, tool: str, *arguments: str) -> str:
        """Run a tool with the connection in a file, since arguments can be seen by anyone."""
        java = find_java(self.settings)
        classpath = ":".join(str(path) for path in jar_paths("kafka", self.settings))
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "client.properties"
            config.touch(mode=0o600)
            config.write_text(java_properties(self.connection.java()))
            command = [
                java.executable,
                *_JVM,
                _QUIET,
                *self._allowed_urls(),
                "-cp",
                classpath,
                tool,
            ]
            command += ["--bootstrap-server", self.connection.bootstrap_servers]
            command += ["--command-config", str(config), *arguments]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=TIMEOUT, check=False
                )
            except subprocess.TimeoutExpired:
                raise UnreachableError(
                    f"Kafka at {self.connection.bootstrap_servers} did not answer "
                    f"{tool.rpartition('.')[2]} within {TIMEOUT} s."
                ) from None
        if done.returncode != 0:
            said = (done.stderr + done.stdout).strip().splitlines() or ["nothing"]
            raise TopicError(f"Kafka's {tool.rpartition('.')[2]} failed: {said[0].rstrip('.')}.")
        return done.stdout
