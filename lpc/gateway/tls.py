"""TLS of the gateway's port, with certificates that change while it runs. Open connections keep theirs."""

import logging
import ssl

from lpc.wire.certificates import CertificateError, CertificateFiles, read
from lpc.wire.watched import WatchedFiles

log = logging.getLogger(__name__)


class GatewayTls:
    """The certificate in use.

    Raises:
        CertificateError: a file cannot be used.
    """

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files
        self._watched = WatchedFiles(files.present)
        read(files)
        self._current = _context(files)

    def install(self, listening: ssl.SSLContext) -> None:
        """Let each handshake on a context use the certificate that is then in use."""

        def choose(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            del name, context
            connection.context = self._current

        # OpenSSL calls it at each ClientHello, also without a server name.
        listening.sni_callback = choose

    def refresh(self) -> None:
        """Look at the files. Wrong new ones are reported once per change, and the old ones stay."""
        if not self._watched.changed():
            return
        try:
            read(self._files)
            context = _context(self._files)
        except (CertificateError, OSError) as error:
            log.error("the new certificate is not used: %s", error)
            return
        if self._watched.changed():
            # Written while they were read: certificate and key may not be one pair.
            self._watched.look_again()
            return
        self._current = context
        log.info("a new TLS certificate is in use")


def _context(files: CertificateFiles) -> ssl.SSLContext:
    assert files.certificate is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key, password="")
    return context
