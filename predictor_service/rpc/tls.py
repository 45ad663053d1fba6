"""TLS of the sidecar's TCP port, with certificates that change while it runs.

gRPC asks for new certificates at every handshake; open connections keep theirs. New files that are wrong change nothing but a
line in the log: the ones in use go on being used until they expire.
"""

import grpc

from lpc.wire.certificates import CertificateFiles, Pem, read
from lpc.wire.watched import Watched


class ServerTls(Watched[Pem]):
    """The certificates in use. With an authority in ``files``, clients must show a certificate signed by it (mTLS).

    Raises:
        CertificateError: a file cannot be used.
    """

    def __init__(self, files: CertificateFiles) -> None:
        super().__init__(files.present, lambda: read(files), "certificates are")
        self._mutual = files.ca is not None
        self._given = self.current

    def credentials(self) -> grpc.ServerCredentials:
        """Return what gRPC listens with."""
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self.current),
            self._fetch,  # type: ignore[arg-type]  # gRPC documents None, its stubs do not
            require_client_authentication=self._mutual,
        )

    @property
    def expires_at(self) -> float:
        """When the certificate in use ends, seconds since the Unix epoch."""
        return self.current.expires_at or 0.0

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC at each handshake, in a thread of its own; None: as before."""
        pem = self.current
        if pem is self._given:
            return None
        self._given = pem
        return _configuration(pem)


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    assert pem.certificate is not None
    assert pem.key is not None
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.ca)
