"""Named steps inside a batch at which a test or a drill kills the whole program.

The variable TALLYGATE_FAIL_AT arms one, as `rows-written@3`: the first time that this step of batch
3 (or with `*` of any batch) is reached, in the driver or in a task, the driver, its JVM and its
workers are killed as by `kill -9`. Nothing is caught and nothing is flushed: this is what a power
cut looks like. Without the variable a step is one comparison.

    batch-started     Spark has logged the batch's offsets; nothing is read
    batch-planned     the ledger was asked what is left to do
    rows-begun        the first rows were handed to the store
    rows-written      all rows of a transaction are with the store, the ledger is not moved
    rows-staged       the tasks' rows are staged, none is merged
    ledger-moved      rows and ledger are with the store, nothing is committed
    commit-sent       the commit is on its way, its answer is never seen
    committed         the commit was answered, the batch is not finished
    batch-committed   every commit is answered, Spark has not logged the batch as done

Deliveries that save offsets and rows apart reach `committed` twice, once for each.

Two more things can happen to a task, once: `rows-written@3/executor` kills the executor that it
runs in, and `rows-written@3/stall` lets it hang there, so that Spark starts it a second time where
speculation is on. Executors must be told by `spark.executorEnv.TALLYGATE_FAIL_AT`, and of a file
TALLYGATE_FAILED that is made when it has happened.
"""

import contextlib
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

__all__ = ["DRIVER", "POINTS", "mark_driver", "reach"]

POINTS = (
    "batch-started",
    "batch-planned",
    "rows-begun",
    "rows-written",
    "rows-staged",
    "ledger-moved",
    "commit-sent",
    "committed",
    "batch-committed",
)
ARMED = os.environ.get("TALLYGATE_FAIL_AT")
FAILED = os.environ.get("TALLYGATE_FAILED", "")
DRIVER = "TALLYGATE_DRIVER_PID"
COMMIT_TAKES = 0.002
STALL = 30.0


def reach(point: str, batch: int) -> None:
    """Die here, if this is the step that was armed."""
    if ARMED is None:
        return
    step, _, fault = ARMED.partition("/")
    if step not in (f"{point}@{batch}", f"{point}@*"):
        return
    if fault:
        _fail_task(fault)
    elif point == "commit-sent":
        threading.Thread(target=_die_soon, daemon=True).start()
    else:
        _die()


def mark_driver() -> None:
    """Tell the workers that will be forked whom to kill."""
    if ARMED is not None:
        os.environ[DRIVER] = str(os.getpid())


def _fail_task(fault: str) -> None:
    """The worker was forked by a daemon, and the daemon was started by the executor."""
    import psutil
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return
    try:
        os.close(os.open(FAILED, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if fault == "executor":
        _kill(psutil.Process().parents()[1])
    else:
        time.sleep(STALL)


def _die_soon() -> None:
    time.sleep(COMMIT_TAKES)
    _die()


def _die() -> None:
    import psutil

    _kill(psutil.Process(int(os.environ[DRIVER])))


def _kill(process: "psutil.Process") -> None:
    """With all that it started; whoever does this comes last, or it would not get to the rest."""
    import psutil

    family = [process, *process.children(recursive=True)]
    for each in sorted(family, key=lambda each: each.pid == os.getpid()):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGKILL)
