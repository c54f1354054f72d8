"""Free ports on loopback.

They are taken from below the range that the kernel hands out for outgoing connections. A port from
within that range can be stolen by a client while its broker is down, and a client that keeps
trying to reach a dead broker there can even connect to itself.
"""

import contextlib
import random
import socket
from pathlib import Path

from tallygate.errors import MachineError

LOOPBACK = "127.0.0.1"
LOWEST = 10_000


def free_ports(count: int, avoid: set[int] | None = None) -> list[int]:
    """`count` different ports that no program listens on and that are not in `avoid`."""
    candidates = list(range(LOWEST, _ephemeral_start()))
    random.shuffle(candidates)
    found: list[int] = []
    for port in candidates:
        if port not in (avoid or ()) and is_free(port):
            found.append(port)
            if len(found) == count:
                return found
    raise MachineError(f"{count} free ports are needed on {LOOPBACK}, but only {len(found)} are.")


def is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, port))
        return True
    return False


def is_open(port: int) -> bool:
    """Whether something accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0


def check_free(port: int, use: str) -> None:
    if not is_free(port):
        raise MachineError(
            f"port {port} for {use} is in use by another program; stop that program, or leave "
            "the port out and a free one is found."
        )


def _ephemeral_start() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        start = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        if start > LOWEST + 1000:
            return start
    return 32_768
