"""Loopback ports: free ones, and the question whether one is free or answers."""

import socket

from ...schemas.errors import StackError

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """`count` different ports that nothing listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def answers(port: int) -> bool:
    """Whether something accepts connections on `port`."""
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


def taken(port: int, what: str, setting: str) -> StackError:
    """The error for a port that something else listens on."""
    return StackError(
        f"port {port}, wanted for {what}, is taken by another program.",
        field=setting,
        remedy=f"Stop what listens there (`ss -ltnp 'sport = :{port}'` names it) or choose another port.",
    )
