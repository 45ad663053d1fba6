"""Reads certificate files and checks them before use.

TLS libraries report invalid files only at the first connection, from another thread and with unclear messages. These checks
cannot see whether others trust a certificate, and for which purpose it was issued; `lpc doctor` connects to find out.
"""

import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lpc.distribution import install
from lpc.errors import LpcError

_VERDICTS: Final = {
    9: "is not yet valid: check this machine's clock",
    10: "has expired: renew it",
    26: "is not made for a server: its extended key usage must include serverAuth",
    62: "is not made for this address: its subjectAltName must contain it",
    64: "is not made for this address: its subjectAltName must contain it",
}
"""Messages for OpenSSL's verification errors (X509_V_ERR_...)."""


class CertificateError(LpcError):
    """A certificate, key or token file is invalid. The message contains its path and the remedy."""


@dataclass(frozen=True)
class CertificateFiles:
    """Paths of PEM files: the process's certificate chain and key, and the certificate authority of its peers."""

    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    @property
    def present(self) -> Sequence[Path]:
        """The paths that are set."""
        return [path for path in (self.certificate, self.key, self.ca) if path is not None]


@dataclass(frozen=True)
class Pem:
    """The contents of certificate files. ``expires_at``: expiry of the certificate, seconds since the epoch; None: unknown."""

    certificate: bytes | None
    key: bytes | None = field(repr=False)
    ca: bytes | None
    expires_at: float | None


def read(files: CertificateFiles) -> Pem:
    """Read the files.

    Raises:
        CertificateError: a file is missing, not PEM or expired, or certificate and key do not match.
    """
    certificate, key, ca = (_bytes(path) for path in (files.certificate, files.key, files.ca))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if files.ca is not None:
        try:
            context.load_verify_locations(files.ca)
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(f"{files.ca} does not contain a PEM certificate: use the authority's certificate") from error
    expires_at = None
    if files.certificate is not None and files.key is not None:
        expires_at = _check_pair(context, files.certificate, files.key)
    return Pem(certificate, key, ca, expires_at)


def verdict(code: int) -> str:
    """Return meaning and remedy of an OpenSSL verification error of a server's certificate."""
    return _VERDICTS.get(code, "is not signed by the given authority: use the right one")


def _bytes(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(f"cannot read {path}: {error.strerror}") from error


def _check_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> float | None:
    """Return a certificate's expiry, seconds since the epoch; None: unknown. Raises CertificateError."""
    try:
        # With an empty pass phrase OpenSSL does not prompt for one on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise CertificateError(f"{certificate} and {key} do not match: use the key of this certificate") from error
        raise CertificateError(
            f"{certificate} and {key} are not a PEM certificate and key, or the key has a pass phrase: "
            "use a certificate and its unencrypted key"
        ) from error
    try:
        from cryptography import x509  # takes a tenth of a second, which only processes with a certificate need
    except ModuleNotFoundError:
        raise CertificateError(f"reading {certificate} needs the package cryptography: {install('tls')}") from None

    try:
        own = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
    except ValueError:
        return None  # OpenSSL accepts more, such as numbers below 0
    begins, ends = own.not_valid_before_utc.timestamp(), own.not_valid_after_utc.timestamp()
    if not begins <= time.time() <= ends:
        raise CertificateError(f"{certificate} {_VERDICTS[9 if time.time() < begins else 10]}")
    return ends
