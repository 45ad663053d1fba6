"""Which sidecars stand behind an address: a name may have many, and they come and go.

gRPC's own balancing gives each *call* to the next of a name's addresses, and an engine has one call for as long as it lasts:
its stream. So each address gets a connection and a stream of its own (:mod:`eviction_client.link`), and the book gives every
request to the one that has the least to do. Names are looked up again every RESOLVE_S seconds, so that a sidecar that starts
later gets its share of the engines that are there already. A plain `host:port`, `dns:///name:port` of a headless service and
`ipv4:a:p,b:p` are the same here; a Unix socket, and an address that only gRPC can resolve, are one connection.
"""

import ipaddress
import re
import socket
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

RESOLVE_S: Final = 10.0
"""Seconds between two look-ups of a name, give or take a quarter: 10,000 engines ask 1,000 times a second."""
MOST_PEERS: Final = 4
"""Sidecars that one engine is connected to; each takes three threads that sleep. Of more, each engine draws its own, so that a
large fleet's load is spread as well."""

_NAME: Final = re.compile(r"(?:dns:(?:///)?)?(?P<host>[^:/\[\],\s]+):(?P<port>\d{1,5})")
_ADDRESSES: Final = re.compile(r"(?P<family>ipv4|ipv6):(?P<list>.+)")


@dataclass(frozen=True, slots=True)
class Peer:
    """One sidecar.

    Attributes:
        target: of gRPC.
        name: host:port that led to the target, and whose host its certificate is for; empty where that is the target itself.
    """

    target: str
    name: str = ""

    @property
    def options(self) -> tuple[tuple[str, Any], ...]:
        """Options of a channel to the target, under which it is who the name says."""
        if not self.name:
            return ()
        return (("grpc.default_authority", self.name), ("grpc.ssl_target_name_override", self.name.rpartition(":")[0]))


def may_change(address: str) -> bool:
    """Say whether an address is a name that other sidecars may stand behind later."""
    found = _NAME.fullmatch(address)
    return found is not None and not _is_ip(found["host"]) and found["host"] != "localhost"


def peers_of(address: str) -> list[Peer]:
    """Return the sidecars behind an address, at least one. Looks a name up, which may take seconds. Raises OSError."""
    if listed := _ADDRESSES.fullmatch(address):
        return [Peer(f"{listed['family']}:{one}") for one in listed["list"].split(",")]
    if not may_change(address):
        return [Peer(address)]
    name = address.rpartition("/")[2].removeprefix("dns:")
    host, _, port = name.rpartition(":")
    by_family: dict[str, list[str]] = {"ipv4": [], "ipv6": []}
    for family, _, _, _, found in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM):
        if family == socket.AF_INET:
            by_family["ipv4"].append(f"ipv4:{found[0]}:{port}")
        elif family == socket.AF_INET6:
            by_family["ipv6"].append(f"ipv6:[{found[0]}]:{port}")
    if all(len(targets) == 1 for targets in by_family.values()):
        # One sidecar by both families, of which gRPC finds out the one that works.
        return [Peer(address)]
    # Of sidecars that have both, one address each.
    targets = max(by_family.values(), key=len)
    return [Peer(target, name) for target in dict.fromkeys(targets)] or [Peer(address)]


def chosen(peers: list[Peer], engine: bytes, most: int = MOST_PEERS) -> list[Peer]:
    """Return the sidecars that an engine connects to: by the highest hash, so that one more or less changes at most one."""
    return sorted(peers, key=lambda peer: blake2b(peer.target.encode(), digest_size=8, key=engine).digest())[:most]


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
