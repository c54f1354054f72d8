import socket
from pathlib import Path

import pytest

from tallygate.errors import MachineError
from tallygate.ports import check_free, free_ports, is_free, is_open


def test_free_ports_are_different_avoidable_and_below_the_ephemeral_range() -> None:
    first = free_ports(20)
    assert len(set(first)) == 20
    assert not set(free_ports(20, avoid=set(first))) & set(first)
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert max(first) < int(ephemeral[0])


def test_a_port_in_use_is_noticed_and_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert is_open(port)
        assert not is_free(port)
        with pytest.raises(MachineError, match=f"port {port} for PostgreSQL is in use"):
            check_free(port, "PostgreSQL")
    assert not is_open(port)
