"""Channels to a sidecar with TLS and a token, according to the settings."""

import ipaddress
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import grpc
import grpc.aio

from lpc.wire.addresses import bare, parted
from lpc.wire.certificates import CertificateError, CertificateFiles, Pem, read
from lpc.wire.tokens import token_in

_PROXIES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
_NO_PROXIES: Final = ("no_grpc_proxy", "no_proxy")
"""Variables that gRPC reads, only in lower case: the first that is set counts, even if it is empty."""
_SCHEMES: Final = ("dns:", "ipv4:", "ipv6:")


class AccessSettings(Protocol):
    """The settings of :class:`eviction_client.settings.ClientSettings` that concern access."""

    @property
    def predictor_files(self) -> CertificateFiles:
        """The sidecar's certificate authority, and the client's own certificate and key."""

    @property
    def predictor_token_file(self) -> Path | None:
        """File with the token."""


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials for a sidecar. Two objects are equal if the contents of their files are equal.

    Attributes:
        credentials: TLS credentials; None: no TLS.
        metadata: metadata of every call, with the token.
        pem: the certificates in the credentials.
    """

    credentials: grpc.ChannelCredentials | None = field(default=None, compare=False)
    metadata: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    pem: Pem | None = field(default=None, repr=False)

    def channel(self, address: str, options: Sequence[tuple[str, Any]] = ()) -> grpc.Channel:
        """Return a channel to an address. Unix sockets never use TLS."""
        if self.credentials is None or address.startswith("unix:"):
            return grpc.insecure_channel(address, options=_direct(address, options))
        return grpc.secure_channel(address, self.credentials, options=_direct(address, options))

    def aio_channel(self, address: str, options: Sequence[tuple[str, Any]] = ()) -> grpc.aio.Channel:
        """Return a channel for an event loop; see :meth:`channel`."""
        if self.credentials is None or address.startswith("unix:"):
            return grpc.aio.insecure_channel(address, _direct(address, options))
        return grpc.aio.secure_channel(address, self.credentials, _direct(address, options))


def _direct(address: str, options: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return a channel's options, without a proxy if the address is on this machine."""
    return [*options, *([("grpc.enable_http_proxy", 0)] if stays_on_this_machine(address) else [])]


def proxy_for(address: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the environment variable by whose proxy a channel of :class:`Access` connects; empty: without a proxy."""
    if stays_on_this_machine(address):
        return ""
    name = next((name for name in _PROXIES if name in environment), "")
    if not environment.get(name):
        return ""
    kept = environment.get(next((one for one in _NO_PROXIES if one in environment), ""), "")
    try:
        host = parted(_without_scheme(address))[0]
    except ValueError:
        host = address
    return "" if any(_excludes(entry.strip(), host) for entry in kept.split(",")) else name


def _excludes(entry: str, host: str) -> bool:
    """Return whether an entry of no_proxy, a suffix of names or a network, contains a host."""
    if not entry:
        return False
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return host.lower().endswith(entry.lower())


def proxy_advice(address: str) -> str:
    """Return a clause for the message of a failed connection, if gRPC used a proxy; otherwise an empty string."""
    name = proxy_for(address)
    return f"gRPC connects through the proxy of {name}; to connect directly, add the host to no_grpc_proxy" if name else ""


def access_of(settings: AccessSettings) -> Callable[[], Access]:
    """Return a function that reads the files at each call, because certificates and tokens change while an engine runs.

    It raises lpc.wire.certificates.CertificateError if a file is unreadable or invalid.
    """

    def access() -> Access:
        files, path = settings.predictor_files, settings.predictor_token_file
        token = None if path is None else token_in(path, CertificateError)
        credentials = pem = None
        if files.ca is not None:
            pem = read(files)
            credentials = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate)
        return Access(credentials, (("authorization", f"Bearer {token}"),) if token else (), pem)

    return access


def stays_on_this_machine(address: str) -> bool:
    """Return whether data sent to an address does not leave this machine."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    try:
        return _is_local(parted(_without_scheme(address))[0])
    except ValueError:
        return False


def _without_scheme(address: str) -> str:
    scheme = next((one for one in _SCHEMES if address.startswith(one)), "")
    return address.removeprefix(scheme).lstrip("/") if scheme else address


def _is_local(host: str) -> bool:
    name = host.lower().removesuffix(".")
    return is_loopback(host) or name in ("localhost", "ip6-localhost") or name.endswith(".localhost")


def is_loopback(host: str) -> bool:
    """Return whether a host name or IP address (IPv6 with or without brackets) is loopback."""
    try:
        address = ipaddress.ip_address(bare(host))
    except ValueError:
        return host == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
