"""A topic that is forgotten, in the ledger in PostgreSQL: what is kept of it changes its name."""

from tallygate.core.ledger import Claim, Forget
from tallygate.postgres.ledger_tables import Transaction


def forget(transaction: Transaction, claim: Claim, change: Forget) -> None:
    """Give all that is kept of a topic another name; positions, as in `move`, are compared."""
    held = transaction.rows(
        "SELECT partition, next_offset FROM tallygate.positions WHERE pipeline = $1 AND topic = $2",
        claim.pipeline,
        change.topic,
    )
    change.check({(change.topic, number): at for number, at in held})
    for table in ("positions", "lost_ranges", "dead_letter_records"):
        transaction.rows(
            f"UPDATE tallygate.{table} SET topic = $3 WHERE pipeline = $1 AND topic = $2",
            claim.pipeline,
            change.topic,
            change.name,
        )
    transaction.rows(
        "UPDATE tallygate.pipelines SET topic_ids = (topic_ids - $2::text) "
        "|| jsonb_build_object($3::text, topic_ids -> $2::text) "
        "WHERE name = $1 AND jsonb_exists(topic_ids, $2::text)",
        claim.pipeline,
        change.topic,
        change.name,
    )
    for each in change.ranges:
        transaction.rows(
            "INSERT INTO tallygate.positions (pipeline, topic, partition, first_offset, "
            "next_offset) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
            claim.pipeline,
            change.name,
            each.partition,
            each.start,
            each.until,
        )
