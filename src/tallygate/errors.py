"""Every error a user can meet.

    TallygateError            1   something failed that has no more precise name
    ├── ConfigError           3   a setting, flag value or file says something impossible
    ├── MachineError          4   this machine lacks something: Java, disk, memory, a free port
    ├── JarError              5   the jars of Kafka or Spark are missing or damaged
    ├── StackError            6   the local stack is not in the state that the command needs
    ├── NodeError             7   a broker, controller or PostgreSQL died or did not get ready
    ├── UnreachableError      8   a Kafka cluster or PostgreSQL did not answer in time
    ├── TopicError            9   Kafka, or a check made before asking it, refused a topic operation
    ├── InputError           10   a file, a line or a record cannot be read as what it should be
    ├── DeliveryError        11   records were sent, but not acknowledged
    ├── FencedError          12   another program took over the same work
    ├── HandlerError         13   a consumer's handler failed for good on a record
    ├── LostRangeError       14   records that were still to be read are gone from the source
    ├── LedgerError          15   the ledger and the batch at hand do not fit each other
    ├── TargetError          16   the sink's table or topic cannot take what the pipeline makes
    ├── QueryError           17   Spark stopped the query
    └── DeadLettersError     18   a run wrote no row: what it read are dead letters

The number is the exit code of the command line. A message is one sentence (or two) that
says what happened, where, and what to do; nothing above it should need a traceback.
"""

__all__ = [
    "ConfigError",
    "DeadLettersError",
    "DeliveryError",
    "FencedError",
    "HandlerError",
    "InputError",
    "JarError",
    "LedgerError",
    "LostRangeError",
    "MachineError",
    "NodeError",
    "QueryError",
    "StackError",
    "TallygateError",
    "TargetError",
    "TopicError",
    "UnreachableError",
]


class TallygateError(Exception):
    """Something failed that has no more precise name; every error here is one of these."""

    exit_code = 1


class ConfigError(TallygateError):
    """A setting is unknown, malformed, or contradicts another."""

    exit_code = 3


class MachineError(TallygateError):
    """The machine lacks something that must be there before anything can start."""

    exit_code = 4


class JarError(TallygateError):
    """A set of jars could not be fetched, or what is in the cache is damaged."""

    exit_code = 5


class StackError(TallygateError):
    """The local stack is up, down, unknown or different when the command needs otherwise."""

    exit_code = 6


class NodeError(TallygateError):
    """A process of the local stack died, or was not ready in time."""

    exit_code = 7


class UnreachableError(TallygateError):
    """A server outside this program did not answer in the time it was given."""

    exit_code = 8


class TopicError(TallygateError):
    """A topic operation was refused; nothing was changed."""

    exit_code = 9


class InputError(TallygateError):
    """A file, a line or a record cannot be read as what it should be."""

    exit_code = 10


class DeliveryError(TallygateError):
    """Records were handed to a producer that Kafka did not acknowledge."""

    exit_code = 11


class FencedError(TallygateError):
    """Another program took over the same work; this one wrote nothing more."""

    exit_code = 12


class HandlerError(TallygateError):
    """A consumer's handler failed on a record as often as it may, and nowhere takes the record."""

    exit_code = 13


class LostRangeError(TallygateError):
    """Records that were still to be read are gone from the source; how many, and from where."""

    exit_code = 14


class LedgerError(TallygateError):
    """A batch leaves a gap in the ledger, or overlaps it in a way that cannot be told apart."""

    exit_code = 15


class TargetError(TallygateError):
    """The sink's table or topic is missing, differs, or refuses a row."""

    exit_code = 16


class QueryError(TallygateError):
    """Spark stopped the query for a reason of its own or of the transform's."""

    exit_code = 17


class DeadLettersError(TallygateError):
    """A run until all is read wrote no row, since what it read are dead letters. They are kept."""

    exit_code = 18
