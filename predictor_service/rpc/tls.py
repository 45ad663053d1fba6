"""TLS of the sidecar's TCP port, with certificates that can change while it runs.

gRPC fetches the certificates at every handshake. Invalid new files are logged, and the current certificates stay in use.
"""

import grpc

from lpc.wire.certificates import CertificateFiles, Pem, read
from lpc.wire.watched import Watched


class ServerTls(Watched[Pem]):
    """The current certificates. With an authority in ``files``, clients must have a certificate signed by it (mTLS).

    Raises:
        CertificateError: a file is invalid.
    """

    def __init__(self, files: CertificateFiles) -> None:
        super().__init__(files.present, lambda: read(files), "certificates are")
        self._mutual = files.ca is not None
        self._given = self.current

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials for gRPC's port."""
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self.current),
            self._fetch,  # type: ignore[arg-type]  # gRPC documents None, its stubs do not
            require_client_authentication=self._mutual,
        )

    @property
    def expires_at(self) -> float:
        """Expiry of the current certificate, seconds since the Unix epoch; 0: unknown."""
        return self.current.expires_at or 0.0

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC at each handshake, in its own thread; None: unchanged."""
        pem = self.current
        if pem is self._given:
            return None
        self._given = pem
        return _configuration(pem)


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    assert pem.certificate is not None
    assert pem.key is not None
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.ca)
