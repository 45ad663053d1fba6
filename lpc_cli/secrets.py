"""`lpc secrets`: keys, certificates and tokens of a deployment with response caches, in one folder per process."""

import os
import re
import secrets as random
import stat
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lpc.errors import UsageError
from lpc.files import writing
from predictor_service.own_folder import ForeignFolder

if TYPE_CHECKING:
    from cryptography import x509

NAMES: Final = (
    *("localhost", "127.0.0.1", "::1", "caches", "predictor"),
    *(
        f"{service}.lpc.svc{domain}"
        for service in ("lpc-caches", "lpc-predictor", "lpc-predictor-headless")
        for domain in ("", ".cluster.local")
    ),
)
"""Names of the response caches in docker-compose.yml and deploy/overlays/gateway, and of sidecars that serve them."""
VALID: Final = timedelta(days=3650)
PARTS: Final = ("caches", "gateway", "engine", "clients")
"""Folders with secrets."""
_CLIENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def secrets(
    folder: Annotated[Path, typer.Argument(help="Folder for the files. Existing files are kept.")],
    name: Annotated[
        list[str] | None, typer.Option(help="Additional host name or IP address of the response caches; repeatable.")
    ] = None,
    client: Annotated[
        list[str] | None, typer.Option(help="Client of the gateway, with a token in clients/; repeatable.")
    ] = None,
    engine: Annotated[
        bool, typer.Option("--engine", help="Also create engine/, for the engines of a sidecar that serves the caches.")
    ] = False,
) -> None:
    """Create the secrets of a deployment with response caches: certificates, tokens, keys and the Redis password.

    Writes caches/ and gateway/ below the folder. Mount in each process its own folder only. Other users lose their access.
    The authority's key is not written.
    """
    clients = client or []
    if wrong := [one for one in clients if not _CLIENT.fullmatch(one)]:
        raise UsageError(f"invalid client {wrong[0]!r}: use letters, digits, dots, dashes and underscores, 63 at most")
    caches, gateway = folder / "caches", folder / "gateway"
    _close(folder, *(folder / name for name in PARTS))
    _certificates(caches, (*NAMES, *(name or [])))
    for reader in (gateway, folder / "engine") if engine else (gateway,):
        _write(reader / "ca.crt", (caches / "ca.crt").read_text())
        _enter(caches / "tokens", reader.name, _token(reader / "token"))
    _token(caches / "redis-password")
    _token(gateway / "salt-key")
    if not (caches / "keys").exists():
        _write(caches / "keys", "".join(f"{key}: {random.token_hex(32)}\n" for key in ("names", "k1")))
    for one in clients:
        _enter(gateway / "clients", one, _token(folder / "clients" / one))
    typer.echo(f"{folder} holds the secrets of response caches and gateway{' and engines' if engine else ''}")


def _close(folder: Path, *parts: Path) -> None:
    """Take away other users' access: to write to the folder, and any to its parts and their files.

    Raises ForeignFolder if another user may have put something there: its secrets could be known.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _restrict(folder.resolve(), 0o022, roots=True)
    for part in parts:
        if os.path.lexists(part):
            _restrict(part, 0o077)
            for file in part.iterdir():
                _restrict(file, 0o077)


def _restrict(path: Path, mode: int, *, roots: bool = False) -> None:
    """Remove permissions. ``roots``: a folder of root, or one in which users keep apart as in /tmp, is as safe."""
    found = path.lstat()
    user = os.geteuid()
    if roots and found.st_uid != user and (found.st_mode & stat.S_ISVTX or not found.st_mode & mode) and found.st_uid == 0:
        return
    if stat.S_ISLNK(found.st_mode) or found.st_uid != user:
        what = "is a symbolic link" if stat.S_ISLNK(found.st_mode) else f"belongs to user {found.st_uid}, not to user {user}"
        raise ForeignFolder(f"{path} {what}: someone else may know the secrets in it; remove it, or choose another folder")
    if found.st_mode & mode and not (roots and found.st_mode & stat.S_ISVTX):
        path.chmod(stat.S_IMODE(found.st_mode) & ~mode)


def _token(path: Path) -> str:
    """Return the token in a file, which is created with a random token if it is missing."""
    if not path.exists():
        _write(path, random.token_hex(32))
    return path.read_text().strip()


def _enter(path: Path, name: str, token: str) -> None:
    """Add a token to a token file. Other lines stay, also of earlier tokens."""
    line = f"{name}: {sha256(token.encode()).hexdigest()}\n"
    lines = path.read_text() if path.exists() else ""
    if line not in lines:
        _write(path, lines + line)


def _write(path: Path, text: str) -> None:
    """Write a file atomically, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with writing(path, 0o600) as file:
        file.write(text.encode())


def _certificates(folder: Path, names: Sequence[str]) -> None:
    """Write ca.crt, tls.key and tls.crt for names and addresses, unless the present certificate covers them."""
    from cryptography import x509

    files = [folder / name for name in ("ca.crt", "tls.key", "tls.crt")]
    try:
        wanted = [_general_name(name) for name in dict.fromkeys(names)]
    except ValueError:
        raise UsageError(f"invalid name in {', '.join(names)}: use host names and IP addresses") from None
    if all(file.exists() for file in files):
        old = x509.load_pem_x509_certificate(files[2].read_bytes())
        if set(wanted) <= set(old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value):
            return
    # The certificate is written last, so that its presence means that all files are complete.
    files[2].unlink(missing_ok=True)
    for file, text in zip(files, _issued(wanted), strict=True):
        _write(file, text)


def _general_name(name: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _issued(names: Sequence["x509.GeneralName"]) -> tuple[str, str, str]:
    """Return a new authority's certificate, a new key, and its certificate signed by the authority, as PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def begun(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named("lpc-authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            # Clocks differ.
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + VALID)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(issuer, critical=False)
        )

    def pem(certificate: x509.Certificate) -> str:
        return certificate.public_bytes(serialization.Encoding.PEM).decode()

    authority, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    signs = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
    )
    usage = x509.KeyUsage(**signs, key_cert_sign=True, crl_sign=False, encipher_only=False, decipher_only=False)
    root = (
        begun("lpc-authority", authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(authority, hashes.SHA256())
    )
    leaf = (
        begun("lpc-caches", own)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority, hashes.SHA256())
    )
    key = own.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return pem(root), key.decode(), pem(leaf)
