"""How large a record may be that a consumer writes in the place of one that failed.

A dead letter says more than its record, and the topic for it may be one that was made by hand. What
that refuses it refuses always, so the consumer would end at each start. So it is asked what it
takes, and the letter made to fit.
"""

from collections.abc import Callable

from tallygate.core.record import Output
from tallygate.errors import ConfigError, DeliveryError, TopicError
from tallygate.kafka.producer import LARGEST
from tallygate.kafka.record_size import LEAST, USUAL
from tallygate.kafka.topics import Topics


class LetterLimits:
    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._known: dict[str, int] = {}

    def check(self, topic: str) -> None:
        """Raise if there are dead letters that the topic would never take, or would forget."""
        try:
            configs = self._topics.effective_configs(topic)
        except TopicError:
            return  # who may write may not be one who may ask
        compacted = "compact" in configs["cleanup.policy"]
        if compacted or int(configs["max.message.bytes"]) < LEAST:
            raise ConfigError(
                f"topic {topic!r} cannot keep all dead letters: it "
                + ("is compacted" if compacted else f"takes {configs['max.message.bytes']} bytes")
                + ". Give it cleanup.policy=delete and a max.message.bytes of "
                f"{LEAST:,} or more by `tallygate topic alter {topic}`."
            )

    def largest(self, topic: str) -> int:
        """Bytes that the topic takes at a time. If it is not to be known, all is tried first."""
        if topic not in self._known:
            self._known[topic] = self._asked(topic, otherwise=LARGEST)
        return self._known[topic]

    def send(
        self, made: Callable[[Callable[[str], int]], Output], send: Callable[[Output], None]
    ) -> None:
        """Send a letter, and one that fits if its topic takes less than it was known to."""
        letter = made(self.largest)
        try:
            send(letter)
        except DeliveryError:
            self._known[letter.topic] = self._asked(letter.topic, otherwise=USUAL)
            smaller = made(self.largest)
            if smaller == letter:
                raise
            send(smaller)

    def _asked(self, topic: str, *, otherwise: int) -> int:
        try:
            return min(LARGEST, int(self._topics.effective_configs(topic)["max.message.bytes"]))
        except TopicError:
            return otherwise
