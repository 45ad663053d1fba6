"""TLS of the gateway's port, with certificates that change while it runs. Open connections keep theirs."""

import ssl

from lpc.wire.certificates import CertificateError, CertificateFiles, read
from lpc.wire.watched import Watched


class GatewayTls(Watched[ssl.SSLContext]):
    """The certificate in use.

    Raises:
        CertificateError: a file cannot be used.
    """

    def __init__(self, files: CertificateFiles) -> None:
        super().__init__(files.present, lambda: _context(files), "certificate is")

    def install(self, listening: ssl.SSLContext) -> None:
        """Let each handshake on a context use the certificate that is then in use."""

        def choose(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            del name, context
            connection.context = self.current

        # OpenSSL calls it at each ClientHello, also without a server name.
        listening.sni_callback = choose


def _context(files: CertificateFiles) -> ssl.SSLContext:
    assert files.certificate is not None
    read(files)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.certificate, files.key, password="")
    except OSError as error:  # also of TLS: the files have changed since
        raise CertificateError(f"{files.certificate} changes just now") from error
    return context
