"""Certificate files: read, and checked before they are used, so that a wrong one is a sentence and not a failed handshake.

TLS libraries report a wrong file at the first connection, from another thread and in their own words. Here a certificate and
its key greet each other in memory first, with the standard library alone: what fails there would fail on the wire.
"""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from lpc.errors import LpcError

Role = Literal["server", "client"]

_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_WRONG_PURPOSE: Final = 26
_WRONG_HOST: Final = (62, 64)
"""Of OpenSSL's verification errors (X509_V_ERR_...)."""


class CertificateError(LpcError):
    """A file that opens a sidecar (certificate, key or token) cannot be used. The message names it and says what to do."""


@dataclass(frozen=True)
class CertificateFiles:
    """Where the PEM files lie: certificate (chain) and key of one's own, and the authority that others are checked by."""

    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    @property
    def present(self) -> Sequence[Path]:
        """Those that are set."""
        return [path for path in (self.certificate, self.key, self.ca) if path is not None]


@dataclass(frozen=True)
class Pem:
    """The contents of certificate files. ``expires_at``: of the certificate, seconds since the epoch."""

    certificate: bytes | None
    key: bytes | None = field(repr=False)
    ca: bytes | None
    expires_at: float | None


def read(files: CertificateFiles, role: Role) -> Pem:
    """Return what the files hold, for a server's or a client's use.

    Raises:
        CertificateError: a file is missing, not PEM, expired or for another purpose, or certificate and key do not match.
    """
    contents = [_bytes(path) for path in (files.certificate, files.key, files.ca)]
    expires_at = None
    if files.ca is not None:
        _check_authority(files.ca)
    if files.certificate is not None and files.key is not None:
        expires_at = ssl.cert_time_to_seconds(_own(files.certificate, files.key, role)["notAfter"])
    return Pem(contents[0], contents[1], contents[2], expires_at)


def _bytes(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(f"cannot read {path}: {error.strerror}") from error


def _check_authority(path: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (ssl.SSLError, ValueError) as error:
        raise CertificateError(f"{path} holds no certificate in PEM form: give the authority's certificate") from error


def _own(certificate: Path, key: Path, role: Role) -> dict[str, Any]:
    """Return the fields of a certificate after a handshake in memory with a peer that trusts exactly it."""
    owner = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if role == "server" else ssl.PROTOCOL_TLS_CLIENT)
    peer = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if role == "server" else ssl.PROTOCOL_TLS_SERVER)
    for context in (owner, peer):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        # An empty pass phrase, since OpenSSL would ask for one on the terminal.
        owner.load_cert_chain(certificate, key, password="")
        peer.load_verify_locations(certificate)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise CertificateError(f"{certificate} and {key} do not match: give the key of this certificate") from error
        raise CertificateError(
            f"{certificate} and {key} are not a certificate and key in PEM form, or the key has a pass phrase: "
            "give a certificate and its unencrypted key"
        ) from error
    peer.verify_mode = ssl.CERT_REQUIRED
    peer.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if role == "client":
        # A server needs a certificate of its own, and this one is at hand.
        peer.load_cert_chain(certificate, key, password="")
    try:
        return _greet(owner, peer, role)
    except ssl.SSLCertVerificationError as error:
        raise CertificateError(f"{certificate} {verdict(error.verify_code, role)}") from error
    except ssl.SSLError as error:
        raise CertificateError(f"{certificate} cannot be used for TLS ({error.reason}): make a new one") from error


def verdict(code: int, role: Role = "server") -> str:
    """Say what an OpenSSL verification error means, and what to do."""
    if code == _EXPIRED:
        return "has expired: renew it"
    if code == _NOT_YET_VALID:
        return "is not yet valid: check this machine's clock"
    if code == _WRONG_PURPOSE:
        return f"is not made for a {role}: its extended key usage must include {role}Auth"
    if code in _WRONG_HOST:
        return "is not made for this address: its subjectAltName must contain it"
    return "is not signed by the authority given: give the right one"


def _greet(owner: ssl.SSLContext, peer: ssl.SSLContext, role: Role) -> dict[str, Any]:
    """Let two contexts shake hands in memory; return the owner's certificate as its peer sees it."""
    wires = (ssl.MemoryBIO(), ssl.MemoryBIO())
    ends = (
        peer.wrap_bio(wires[0], wires[1], server_side=role == "client"),
        owner.wrap_bio(wires[1], wires[0], server_side=role == "server"),
    )
    done = [False, False]
    for _ in range(10):
        for i, end in enumerate(ends):
            if not done[i]:
                try:
                    end.do_handshake()
                    done[i] = True
                except ssl.SSLWantReadError:
                    pass
        if all(done):
            break
    return dict(ends[0].getpeercert() or {})
