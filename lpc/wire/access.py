"""How a sidecar is reached: TLS and the token, as the settings say."""

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import grpc

from lpc.wire.certificates import CertificateError, CertificateFiles, Pem, read


class AccessSettings(Protocol):
    """The part of :class:`eviction_client.settings.ClientSettings` that says how to get in."""

    @property
    def predictor_files(self) -> CertificateFiles:
        """Certificates of the sidecar's authority and of one's own."""

    @property
    def predictor_token_file(self) -> Path | None:
        """The file that holds the token."""


@dataclass(frozen=True, slots=True)
class Access:
    """What opens a sidecar. Equal if the contents of the files are.

    Attributes:
        credentials: for TLS; None speaks plain text.
        metadata: of every call.
        pem: of which the credentials were made.
    """

    credentials: grpc.ChannelCredentials | None = field(default=None, compare=False)
    metadata: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    pem: Pem | None = field(default=None, repr=False)

    def channel(self, address: str, options: Sequence[tuple[str, Any]] = ()) -> grpc.Channel:
        """Return a channel to an address. A Unix socket is always plain."""
        if self.credentials is None or address.startswith("unix:"):
            return grpc.insecure_channel(address, options=options)
        return grpc.secure_channel(address, self.credentials, options=options)


def access_of(settings: AccessSettings) -> Callable[[], Access]:
    """Return what reads the files at each call: certificates and tokens are renewed while an engine runs.

    The function returned raises lpc.wire.certificates.CertificateError when a file cannot be used.
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
    """Say whether nobody on the network sees what is sent to an address."""
    if address.startswith("unix:"):
        return True
    return is_loopback(address.rpartition(":")[0])


def is_loopback(host: str) -> bool:
    """Say whether a host (a name or an IP address, an IPv6 one with or without brackets) is this machine's loopback."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
