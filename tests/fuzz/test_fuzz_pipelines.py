"""Any text as a pipeline's file: a pipeline, or one sentence that says what is wrong."""

import random
from pathlib import Path

from fuzz.loop import damaged, fuzz
from tallygate.errors import ConfigError
from tallygate.spec.loading import load_spec
from tallygate.spec.pipeline import PipelineSpec

FILES = (
    b"""name: payments
source: {topic: [payments, more], schema: "id long, amount decimal(12,2)", max_record: 5MB}
sink: {table: payments, mode: upsert, key: [id]}
transform: SELECT id, amount FROM source WHERE amount > :least
parameters: {least: 10}
delivery: idempotent
trigger: 10s
dead_letters: {limit: 10, share: 0.5}
""",
    b"""name: sightings
source: {topic: sightings, schema: "id long, at timestamp", start: {sightings: {"0": 5}}}
static:
  animals: {file: animals.csv, schema: "number long, name string", refresh: on change}
transform:
  - watermark: {at: 8 hours}
  - name: named
    join: {with: animals, on: previous.animal = animals.number, how: left}
  - window: {on: at, size: 15 minutes, slide: 5 minutes}
    group_by: [beach]
    pivot: {on: name, values: [shark, turtle], aggregate: count(*)}
sink: {topic: out, key: beach, format: json}
dead_letters: {late: true}
""",
    b"""name: files
source: {folder: in, format: csv, schema: "id long", options: {header: true}, max_files: 5}
sink: {delta: out, mode: replace}
transform:
  - aggregate: {n: count(*)}
    group_by: [id]
""",
    b"""name: two
sources:
  seen: {pattern: "a.*", format: avro, avro_schema: seen.avsc, start: 2026-01-01}
  more: {topic: more, format: bytes}
sink: {parquet: out}
transform: [{sql: "SELECT ${NAME:1}", from: seen}, {function: "m:f"}, {dedup: [id]}]
""",
)
TOKENS = (
    *(
        b"&a ",
        b"*a",
        b"<<: *a\n",
        b"!!python/object/apply:os.system ",
        b"!!int ",
        b"!!binary ",
        b"? ",
    ),
    *(b"- ", b": ", b"[", b"]", b"{", b"}", b"|\n", b">\n", b"#", b"'", b'"', b"---\n", b"...\n"),
    *(
        b"\t",
        b"\0",
        b"\xff",
        b"\xed\xa0\x80",
        b"%YAML 9.9\n",
        b"null",
        b"~",
        b"yes",
        b".inf",
        b".nan",
    ),
    *(
        b"0x1",
        b"1e999",
        b"1_0",
        b"9" * 400,
        b"2026-99-99",
        b"0001-01-01T00:00:00Z",
        b"-1",
        b"[" * 99,
    ),
    *(
        b"${HOME}",
        b"${",
        b"${A:${B}}",
        b"\\ud800",
        b'"\\ud800"',
        b'"\\0"',
        b"1:30:00",
        b"\r",
        b"\xe2\x80\xa8",
    ),
    *(
        b"source: ",
        b"sink: ",
        b"transform: ",
        b"topic: ",
        b"table: ",
        b"schema: ",
        b"static: ",
        b"name: ",
    ),
)


def test_any_text(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"

    def made(chance: random.Random) -> bytes:
        text = damaged(chance.choice(FILES), chance, TOKENS)
        if chance.random() < 0.2:
            other = chance.choice(FILES).splitlines(keepends=True)
            chance.shuffle(other)
            text += b"".join(other[: chance.randrange(4)])
        return text

    def check(text: bytes) -> None:
        path.write_bytes(text)
        try:
            assert isinstance(load_spec(path), PipelineSpec)
        except ConfigError as error:
            assert str(path) in str(error), "it names the file"
            assert len(str(error)) < 3000
            str(error).encode()

    fuzz(made, check)
