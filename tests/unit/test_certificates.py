"""Certificate files are refused with their name and a remedy before anything uses them."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lpc.wire.certificates import CertificateError, CertificateFiles, read
from tests.authority import Authority, run


def test_good_files_are_read_with_the_end_of_the_certificate(authority: Authority) -> None:
    files = authority.issue("good", days=30)
    pem = read(files)
    assert files.certificate is not None
    assert pem.certificate == files.certificate.read_bytes()
    assert pem.expires_at is not None
    assert abs(pem.expires_at - time.time() - 30 * 86_400) < 120


def test_a_certificate_without_the_package_that_reads_it_is_refused(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert read(CertificateFiles(ca=authority.issue("good").ca)).expires_at is None
    with pytest.raises(CertificateError, match=r"good\.crt needs the package cryptography: pip install '.*\[tls\]'"):
        read(authority.issue("good"))


def test_a_representation_does_not_contain_the_key(authority: Authority) -> None:
    assert "PRIVATE" not in repr(read(authority.issue("quiet")))


def broken(authority: Authority, tmp_path: Path, how: str) -> CertificateFiles:
    good = authority.issue("good")
    assert good.certificate is not None
    assert good.key is not None
    if how == "missing":
        return replace(good, certificate=tmp_path / "nowhere.crt")
    if how == "expired":
        return authority.issue("expired", days=-1)
    if how == "another key":
        return replace(good, key=authority.issue("other").key)
    if how == "pass phrase":
        run("openssl", "ec", "-in", good.key, "-aes256", "-passout", "pass:hunter2", "-out", tmp_path / "locked.key")
        return replace(good, key=tmp_path / "locked.key")
    if how == "garbage":
        (tmp_path / "garbage.crt").write_text("no certificate")
        return replace(good, certificate=tmp_path / "garbage.crt")
    (tmp_path / "empty.crt").touch()
    return replace(good, ca=tmp_path / "empty.crt")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("missing", r"cannot read .*nowhere\.crt: No such file"),
        ("expired", r"expired\.crt has expired: renew it"),
        ("another key", r"good\.crt and .*other\.key do not match"),
        ("pass phrase", r"locked\.key are not a PEM certificate and key, or the key has a pass phrase"),
        ("garbage", r"garbage\.crt and .*good\.key are not a PEM certificate and key"),
        ("no authority", r"empty\.crt does not contain a PEM certificate"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(authority: Authority, tmp_path: Path, how: str, why: str) -> None:
    with pytest.raises(CertificateError, match=why):
        read(broken(authority, tmp_path, how))
