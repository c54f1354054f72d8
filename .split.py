import subprocess


def head(p):
    return subprocess.run(
        ["git", "show", "HEAD:" + p], capture_output=True, text=True, check=True
    ).stdout


def cur(p):
    return open(p).read()


def put(p, text):
    h = subprocess.run(
        ["git", "hash-object", "-w", "--stdin"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    subprocess.run(["git", "update-index", "--cacheinfo", f"100644,{h},{p}"], check=True)


def edit(text, *pairs):
    for a, b in pairs:
        assert text.count(a) == 1, (text.count(a), a)
        text = text.replace(a, b)
    return text


p = "src/tallygate/postgres/ledger_tables.py"
put(
    p,
    edit(
        head(p),
        (
            """"INSERT INTO tallygate.positions (pipeline, topic, partition, first_offset, next_offset) "
        f"SELECT $1, t, p, s, s FROM {_RANGES} ON CONFLICT DO NOTHING",
""",
            """"INSERT INTO tallygate.positions "
        "(pipeline, topic, partition, first_offset, next_offset, topic_id) "
        "SELECT $1, t, p, s, s, (SELECT topic_ids ->> t FROM tallygate.pipelines WHERE name = $1) "
        f"FROM {_RANGES} ON CONFLICT DO NOTHING",
""",
        ),
        (
            '''    """Compare and set every position, or raise: then nothing may be committed."""
''',
            '''    """Compare and set every position, or raise: then nothing may be committed. A new one gets the
    id that its topic had before the batch was read."""
''',
        ),
        (
            """        "x.topic, x.partition, x.first_offset, x.next_offset, x.topic_id "
""",
            """        "p.topic_ids::text, x.topic, x.partition, x.first_offset, x.next_offset, x.topic_id "
""",
        ),
        (
            """    epoch, checkpoint_id, target, host, pid, started, lost = found[0][:7]
    held = [row[7:] for row in found if row[7] is not None]
""",
            """    epoch, checkpoint_id, target, host, pid, started, lost, ids = found[0][:8]
    held = [row[8:] for row in found if row[8] is not None]
""",
        ),
        (
            """        topic_ids={topic: topic_id for topic, *_, topic_id in held if topic_id},
""",
            """        topic_ids=json.loads(ids) | {topic: topic_id for topic, *_, topic_id in held if topic_id},
""",
        ),
        (
            """        "UPDATE tallygate.pipelines SET checkpoint_id = $2 WHERE name = $1",
        claim.pipeline,
        checkpoint_id,
""",
            """        "UPDATE tallygate.pipelines SET checkpoint_id = $2, "
        "topic_ids = topic_ids || ($3::text)::jsonb WHERE name = $1",
        claim.pipeline,
        checkpoint_id,
        json.dumps(dict(ids)),
""",
        ),
    ),
)
p = "src/tallygate/postgres/tables.py"
put(
    p,
    edit(
        cur(p),
        (
            """    ALTER TABLE tallygate.positions ADD COLUMN leader_epoch int;
""",
            "",
        ),
    ),
)
p = "src/tallygate/engine/rebuild.py"
put(p, cur(p))
p = "src/tallygate/core/start.py"
c = cur(p)
put(
    p,
    edit(
        c,
        (
            """from tallygate.core.cut_logs import cut_ranges, refuse_cut_log
""",
            "",
        ),
        (
            """    lost, added, cut = _lost(ledger, source), _added(ledger, source), cut_ranges(ledger, source)
""",
            """    lost, added = _lost(ledger, source), _added(ledger, source)
""",
        ),
        ("_retarget(ledger, policy), cut)\n", "_retarget(ledger, policy))\n"),
        (
            """        cut=cut,
""",
            "",
        ),
        (
            """        or refuse_cut_log(ledger, source, nature, policy)
""",
            "",
        ),
        (
            """    ends = {} if source is None else source.ends
    if any(at > ends.get(partition, at) for partition, at in end.items()):
        return False
    if any(at < start.get(partition, 0) for partition, at in end.items()):
        return False
""",
            "",
        ),
    ),
)
p = "src/tallygate/engine/source_check.py"
put(
    p,
    edit(
        head(p),
        (
            """        self._seen = {} if ledger is None else dict(ledger.topic_ids)
""",
            """        begun = ledger is not None and ledger.positions
        self._seen = dict(ledger.topic_ids) if ledger is not None and begun else {}
""",
        ),
        (
            """ledger is None or not ledger.positions:
""",
            """ledger is None or not (ledger.positions or ledger.topic_ids):
""",
        ),
    ),
)
p = "tests/engine/test_recreated_topics.py"
put(p, cur(p))
p = "tests/contract/test_ledger.py"
c = cur(p)
a = c.index('@pytest.mark.parametrize("way", ways())\ndef test_the_id_of_a_topic')
b = c.index("EPOCHS = {")
h = head(p)
i = h.index("def _written_before(")
put(p, h[:i] + c[a:b] + h[i:])
p = "tests/mutants/silent_loss.py"
c = cur(p)
a = c.index('    Mutant(\n        guarantee="A log that was cut off below')
b = c.index(
    "    Mutant(\n        guarantee=\"A task does not commit what it read of a topic that took another's place."
)
put(p, c[:a] + c[b:])
p = "tests/core/test_start_source.py"
put(p, cur(p))
