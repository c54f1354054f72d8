"""What happens at a failure point that is armed: the program is killed, or a task is.

It is a part of the lab, so that an environment variable alone cannot kill a pipeline: without the
lab nothing would. `tallygate.failpoints` imports this by its name.
"""

import contextlib
import os
import signal
import time

import psutil

STALL = 30.0


def die(driver: int) -> None:
    """Kill the driver, its JVM and its workers; this may be any of them."""
    _kill(psutil.Process(driver))


def fail_task(fault: str, marker: str) -> None:
    """Kill the executor that this task runs in, or let the task hang. The worker was forked by a
    daemon, and the daemon was started by the executor."""
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if fault == "executor":
        _kill(psutil.Process().parents()[1])
    else:
        time.sleep(STALL)


def _kill(process: psutil.Process) -> None:
    """Kill a process with all that it started. This process comes last, or it would not get to the
    rest."""
    family = [process, *process.children(recursive=True)]
    for each in sorted(family, key=lambda each: each.pid == os.getpid()):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGKILL)
