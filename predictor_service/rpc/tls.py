"""TLS of the sidecar's TCP port, with certificates that change while it runs.

gRPC asks for new certificates at every handshake; open connections keep theirs. New files that are wrong change nothing but a
line in the log: the ones in use go on being used until they expire.
"""

import logging
import threading

import grpc

from lpc.wire.certificates import CertificateError, CertificateFiles, Pem, read
from lpc.wire.watched import WatchedFiles

log = logging.getLogger(__name__)


class ServerTls:
    """The certificates in use. With an authority in ``files``, clients must show a certificate signed by it (mTLS).

    Raises:
        CertificateError: a file cannot be used.
    """

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files
        self._watched = WatchedFiles(files.present)
        self._lock = threading.Lock()
        self._fresh: Pem | None = None
        self.current = read(files)

    def credentials(self) -> grpc.ServerCredentials:
        """Return what gRPC listens with."""
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self.current),
            self._fetch,  # type: ignore[arg-type]  # gRPC documents None, its stubs do not
            require_client_authentication=self._files.ca is not None,
        )

    @property
    def expires_at(self) -> float:
        """When the certificate in use ends, seconds since the Unix epoch."""
        return self.current.expires_at or 0.0

    def refresh(self) -> bool:
        """Look at the files; return whether new ones were taken. Wrong ones are reported once per change."""
        if not self._watched.changed():
            return False
        try:
            pem = read(self._files)
        except CertificateError as error:
            log.error("the new certificates are not used: %s", error)
            return False
        if self._watched.changed():
            # Written while they were read: certificate and key may not be one pair.
            self._watched.look_again()
            return False
        with self._lock:
            self.current = self._fresh = pem
        log.info("new TLS certificates are in use")
        return True

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC at each handshake, in a thread of its own; None: as before."""
        with self._lock:
            pem, self._fresh = self._fresh, None
        return _configuration(pem) if pem is not None else None


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    assert pem.certificate is not None
    assert pem.key is not None
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.ca)
