"""Hosts and ports in settings. An IPv6 address may be written with or without brackets, with a zone: ``[fe80::1%eth0]``."""

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit, urlunsplit

MAX_PORT: Final = 65535
_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9_.])?")
_SCHEMES: Final = ("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:", "vsock:", "xds:")
"""Beginnings of gRPC's addresses that are not host:port."""
_USER: Final = re.compile(r"://[^\s\"'<>]*@")


def bare(host: str) -> str:
    """Return a host name or IP address without brackets. Raises ValueError, whose message quotes the host."""
    inner = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host:
        raise ValueError("the address is empty: use 127.0.0.1, or :: for all addresses of this machine")
    if host == "*":
        raise ValueError('"*" is not an address: use :: for all addresses of this machine')
    if ":" in inner or inner != host:
        inner = inner.replace("%25", "%", 1)  # a zone, as it is written in a URL
        try:
            ipaddress.IPv6Address(inner)
        except ValueError:
            hint = "; set the port by its own setting" if _has_port(inner) else ""
            raise ValueError(f'"{host}" is not an IPv6 address{hint}') from None
        return inner
    if not _NAME.fullmatch(host):
        raise ValueError(f'"{host}" is not a host name or an IP address')
    return host


def _has_port(host: str) -> bool:
    name, _, port = host.rpartition(":")
    return ":" not in name.strip("[]") and port.isdecimal()


def with_port(host: str, port: int) -> str:
    """Return host:port. An IPv6 address gets brackets."""
    host = bare(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def plain(address: str) -> str:
    """Return the IP address of a peer without the form in which a socket for IPv6 shows IPv4: `::ffff:10.0.0.1` is 10.0.0.1."""
    return address.removeprefix("::ffff:") if "." in address else address


def parted(address: str) -> tuple[str, int]:
    """Return host, without brackets, and port of an address; the last colon precedes the port. Raises ValueError."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > MAX_PORT:
        raise ValueError(f'"{address}" is not host:port, such as 127.0.0.1:8080 or [::1]:8080')
    return bare(host), int(port)


def target(address: str) -> str:
    """Return an address for gRPC: host:port with brackets around an IPv6 address. Others, as unix:///path, stay unchanged.

    Raises ValueError if an IPv6 address lacks its port.
    """
    if address.count(":") < 2 or address.startswith(_SCHEMES):
        return address
    try:
        return with_port(*parted(address))
    except ValueError:
        raise ValueError(f'"{address}" is not an IPv6 address with a port, such as [::1]:50051') from None


def url_with_brackets(url: str) -> str:
    """Return an http URL with brackets around an IPv6 address in its authority. Raises ValueError."""
    parts = urlsplit(url)
    user, at, place = parts.netloc.rpartition("@")
    if place.count(":") < 2 and "%25" not in place:
        return url
    place = f"[{bare(place)}]" if place.endswith("]") else with_port(*parted(place))
    return urlunsplit(parts._replace(netloc=f"{user}{at}{place}"))


def without_secrets(address: str) -> str:
    """Return an address for messages: without user, password, query and fragment.

    Everything before the last ``@`` is left out, because a password may contain characters that end the host of a valid URL.
    """
    scheme, found, rest = address.partition("://")
    if not found:
        scheme, rest = "", address
    secret, at, rest = rest.rpartition("@")
    for mark in "?#":
        rest = rest.partition(mark)[0]
    return f"{scheme}{found}{'***' if secret else ''}{at}{rest}"


def text_without_secrets(text: str) -> str:
    """Return another program's text for messages, without users and passwords in its addresses."""
    return _USER.sub("://***@", text)
