"""Named steps inside a batch at which a test or a drill kills the whole program.

The variable TALLYGATE_FAIL_AT arms one, as `rows-written@3`: the first time that this step of batch
3 (or with `*` of any batch) is reached, in the driver or in a task, the driver, its JVM and its
workers are killed as by `kill -9`. Nothing is caught and nothing is flushed: this is what a power
cut looks like. Without the variable a step is one comparison.

What kills is a part of the lab (see `lab.killing`). Where the lab is not installed the variable
does nothing: the run goes on, and says so as an error in the log. An environment variable alone
must never end a pipeline in production.

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
speculation is on. Executors need `spark.executorEnv.TALLYGATE_FAIL_AT`, and the path of a file
TALLYGATE_FAILED, which is made when it has happened.
"""

import importlib
import logging
import os
import threading
import time
from typing import Any

from tallygate.extras import has_extra

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
ASKED = os.environ.get("TALLYGATE_FAIL_AT")
ARMED = ASKED if ASKED is not None and has_extra("lab") else None
FAILED = os.environ.get("TALLYGATE_FAILED", "")
DRIVER = "TALLYGATE_DRIVER_PID"
KILLER = "tallygate.lab.killing"
COMMIT_TAKES = 0.002
DEATH_TAKES = 10.0
_dying = threading.Event()
"""Set when the program is about to be killed, while a commit is on its way."""


def reach(point: str, batch: int) -> None:
    """Die here, if this is the step that was armed."""
    armed = ARMED
    if armed is None:
        return
    if _dying.is_set():
        _await_death()  # the answer has come: nothing may follow it
        return
    step, _, fault = armed.partition("/")
    if step not in (f"{point}@{batch}", f"{point}@*"):
        return
    if fault:
        _killer().fail_task(fault, FAILED)
    elif point == "commit-sent":
        _dying.set()
        threading.Thread(target=_die_soon, daemon=True).start()
    else:
        _die()


def mark_driver() -> None:
    """Tell the workers that will be forked which process to kill, or log that none will be."""
    if ARMED is not None:
        os.environ[DRIVER] = str(os.getpid())
    elif ASKED is not None:
        logging.getLogger("tallygate").error(
            "TALLYGATE_FAIL_AT is set and does nothing: failure points belong to the lab, which is "
            "not installed here; unset it, or `pip install 'tallygate[lab]'`."
        )


def _await_death() -> None:
    deadline = time.monotonic() + DEATH_TAKES
    while ARMED is not None and time.monotonic() < deadline:
        time.sleep(COMMIT_TAKES)


def _die_soon() -> None:
    time.sleep(COMMIT_TAKES)
    _die()


def _die() -> None:
    _killer().die(int(os.environ[DRIVER]))


def _killer() -> Any:
    return importlib.import_module(KILLER)
