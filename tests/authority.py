"""A certificate authority for tests, created with openssl."""

import subprocess
from pathlib import Path

import pytest

from lpc.wire.certificates import CertificateFiles
from tests.eventually import patiently

NEW_KEY = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, capture_output=True, timeout=patiently())


class Authority:
    """Signs certificates for 127.0.0.1 and localhost, by default for servers and clients."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.certificate = folder / f"{name}.crt"
        self._key = folder / f"{name}.key"
        run(*NEW_KEY, "-x509", "-days", "30", "-subj", f"/CN={name}", "-keyout", self._key, "-out", self.certificate)

    def issue(
        self, name: str, *, days: int = 30, san: str = "IP:127.0.0.1,DNS:localhost", usage: str = "serverAuth,clientAuth"
    ) -> CertificateFiles:
        """Write <name>.crt and <name>.key, replacing older ones; ``days`` below zero: expired."""
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        extensions.write_text(f"subjectAltName={san}\nextendedKeyUsage={usage}\n")
        run(*NEW_KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        run(
            *("openssl", "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial"),
            *("-days", str(days), "-extfile", extensions, "-out", certificate),
        )
        return CertificateFiles(certificate, key, self.certificate)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """One authority for all tests."""
    return Authority(tmp_path_factory.mktemp("authority"))
