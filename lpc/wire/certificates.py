"""Certificate files: read, and checked before they are used.

TLS libraries report a wrong file at the first connection, from another thread and in their own words. What these checks cannot
see (whether others trust a certificate, and for which purpose it was made) is reported by `lpc doctor`, which connects.
"""

import _ssl
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lpc.errors import LpcError

_VERDICTS: Final = {
    9: "is not yet valid: check this machine's clock",
    10: "has expired: renew it",
    26: "is not made for a server: its extended key usage must include serverAuth",
    62: "is not made for this address: its subjectAltName must contain it",
    64: "is not made for this address: its subjectAltName must contain it",
}
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


def read(files: CertificateFiles) -> Pem:
    """Return what the files hold.

    Raises:
        CertificateError: a file is missing, not PEM or expired, or certificate and key do not match.
    """
    certificate, key, ca = (_bytes(path) for path in (files.certificate, files.key, files.ca))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if files.ca is not None:
        try:
            context.load_verify_locations(files.ca)
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(f"{files.ca} holds no certificate in PEM form: give the authority's certificate") from error
    expires_at = None
    if files.certificate is not None and files.key is not None:
        expires_at = _check_pair(context, files.certificate, files.key)
    return Pem(certificate, key, ca, expires_at)


def verdict(code: int) -> str:
    """Say what an OpenSSL verification error of a server's certificate means, and what to do."""
    return _VERDICTS.get(code, "is not signed by the authority given: give the right one")


def _bytes(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(f"cannot read {path}: {error.strerror}") from error


def _check_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> float:
    """Return when a certificate ends, seconds since the epoch."""
    try:
        # An empty pass phrase, since OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise CertificateError(f"{certificate} and {key} do not match: give the key of this certificate") from error
        raise CertificateError(
            f"{certificate} and {key} are not a certificate and key in PEM form, or the key has a pass phrase: "
            "give a certificate and its unencrypted key"
        ) from error
    # The standard library's only decoder of a certificate that nobody has shown; it is private, and tests notice if it goes.
    fields = _ssl._test_decode_cert(certificate)  # type: ignore[attr-defined]
    begins, ends = (ssl.cert_time_to_seconds(fields[name]) for name in ("notBefore", "notAfter"))
    if not begins <= time.time() <= ends:
        raise CertificateError(f"{certificate} {_VERDICTS[9 if time.time() < begins else 10]}")
    return float(ends)
