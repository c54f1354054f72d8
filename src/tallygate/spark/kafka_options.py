"""How Spark's own reader of Kafka is set, wherever it is used.

After each poll the reader asks for the ends of the partition, and to do so it leaves its place:
what was fetched beyond that poll is fetched again. A poll gives 500 records unless told otherwise,
a fetch brings thousands, so most of what a broker sends is thrown away. Larger polls spare a sixth
of the time of a pipeline, and three quarters of the broker's; still larger ones cost more memory
than they are worth.

A fetch at the end of a partition waits for more, half a second by default, although the batch's end
is known and the last record may be there already.
"""

from collections.abc import Mapping

READING: Mapping[str, str] = {"kafka.max.poll.records": "10000", "kafka.fetch.max.wait.ms": "20"}
"""What users set themselves holds."""
