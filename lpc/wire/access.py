"""Channels to a sidecar with TLS and a token, according to the settings."""

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import grpc

from lpc.wire.addresses import bare, parted
from lpc.wire.certificates import CertificateError, CertificateFiles, Pem, read


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
            return grpc.insecure_channel(address, options=options)
        return grpc.secure_channel(address, self.credentials, options=options)


def access_of(settings: AccessSettings) -> Callable[[], Access]:
    """Return a function that reads the files at each call, because certificates and tokens change while an engine runs.

    It raises lpc.wire.certificates.CertificateError if a file is unreadable or invalid.
    """

    def access() -> Access:
        files, path = settings.predictor_files, settings.predictor_token_file
        token = None if path is None else _token_in(path)
        credentials = pem = None
        if files.ca is not None:
            pem = read(files)
            credentials = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate)
        return Access(credentials, (("authorization", f"Bearer {token}"),) if token else (), pem)

    return access


def _token_in(path: Path) -> str:
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise CertificateError(f"cannot read the token in {path}: {reason}") from None
    if not token:
        raise CertificateError(f"{path} is empty: write the token into it")
    return token


def stays_on_this_machine(address: str) -> bool:
    """Return whether data sent to an address does not leave this machine."""
    if address.startswith("unix:"):
        return True
    try:
        return is_loopback(parted(address)[0])
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Return whether a host name or IP address (IPv6 with or without brackets) is loopback."""
    try:
        return ipaddress.ip_address(bare(host)).is_loopback
    except ValueError:
        return host == "localhost"
