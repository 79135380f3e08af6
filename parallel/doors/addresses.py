"""Addresses of either kind, IPv4 and IPv6, in the forms in which they are told."""

import socket

Family = socket.AddressFamily


def resolved(host: str) -> tuple[Family, str]:
    """The kind and the numbers of an address. One in numbers is asked of nobody.

    Raises: OSError if a name has none.
    """
    family, _, _, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    return family, str(where[0])


def joined(host: str, port: int) -> str:
    """As it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parted(address: str) -> tuple[str, int]:
    """Host and port. Raises: ValueError if it is not HOST:PORT."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or int(port) >= 1 << 16:
        raise ValueError(f"{address!r} is no address; expected HOST:PORT")
    return host, int(port)


def listen(host: str, port: int = 0) -> socket.socket:
    """A listener on this address alone. Raises: OSError if the port is taken; 0 is a free one."""
    family, ip = resolved(host)
    return socket.create_server((ip, port), family=family, backlog=1024)


def answers(where: tuple[str, int], limit_s: float = 3.0) -> bool:
    """Whether somebody listens there, as far as can be seen from here; nothing is said to them."""
    try:
        socket.create_connection(where, timeout=limit_s).close()
    except OSError:
        return False
    return True
