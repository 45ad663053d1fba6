"""A model version as one file for publishing: a gzipped tar of `<model>/<version>/` and its files.

`pull` requires the file's checksum, from the user or from the `SHA256SUMS` next to the file. It then compares the contents
with the manifest's checksums, and installs the version atomically.
"""

import gzip
import hashlib
import http.client
import re
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from lpc.errors import ArtifactError
from lpc.model.artifact import FILES, MANIFEST, read_manifest, verify

SUMS: Final = "SHA256SUMS"
TIMEOUT_S: Final = 60.0
MAX_BYTES: Final = 4 * 2**30
"""Limit for the total size of a version's files."""
KNOWN_FILES: Final = frozenset((*FILES, MANIFEST))
CHUNK: Final = 2**20
_MEMBER: Final = re.compile(r"(\w[\w.-]*)/(\w[\w.-]*)/([\w.-]+)")

Progress = Callable[[int], object]
"""Called with the number of bytes in each received chunk."""


def file_name(version: Path) -> str:
    """Return the name of a version's archive."""
    return f"learned-prefix-cache-{version.parent.name}-{version.name}.tar.gz"


def pack(version: Path, folder: Path, *, time: int) -> Path:
    """Write a version's archive into ``folder``; return its path. The same version and time yield the same bytes.

    Args:
        time: modification time of the files in the archive, seconds since the epoch.

    Raises:
        ArtifactError: a file of the version is missing or damaged, or the folder is not writable.
    """
    manifest = verify(version)
    target = folder / file_name(version)
    try:
        with (
            target.open("wb") as file,
            gzip.GzipFile("", "wb", 6, file, mtime=time) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name in sorted([MANIFEST, *manifest.files]):
                entry = tarfile.TarInfo(f"{version.parent.name}/{version.name}/{name}")
                entry.size, entry.mtime, entry.mode = (version / name).stat().st_size, time, 0o644
                with (version / name).open("rb") as content:
                    archive.addfile(entry, content)
    except OSError as error:
        raise ArtifactError(f"cannot write {target} ({error.strerror}): name another folder") from error
    return target


def pull(source: str, models: Path, *, sha256: str | None = None, progress: Progress = lambda _: None) -> Path:
    """Fetch a version's archive and install the version in a repository, if it is not there; return its folder.

    Args:
        source: path, or http(s) address.
        sha256: checksum of the archive, hexadecimal; None: from the `SHA256SUMS` next to it.

    Raises:
        ArtifactError: the archive cannot be fetched, has another checksum, or is invalid; nothing was installed.
    """
    expected = (sha256 or _published(source)).strip().lower()
    if not re.fullmatch(r"[0-9a-f]{64}", expected):
        raise ArtifactError(f"{expected!r:.80} is not a SHA-256: give 64 hexadecimal digits")
    try:
        models.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=models) as scratch:
            file = Path(scratch) / "file"
            found = _copy(source, file, progress)
            if found != expected:
                raise ArtifactError(
                    f"{source} has SHA-256 {found}, not {expected}: it is damaged or another file; nothing was installed"
                )
            return _install(_unpacked(file, Path(scratch)), models, source)
    except OSError as error:
        raise ArtifactError(f"cannot write to {models}: {error.strerror or error}") from error


def _install(version: Path, models: Path, source: str) -> Path:
    manifest = verify(version)
    if (manifest.name, manifest.version) != (version.parent.name, version.name):
        raise ArtifactError(f"{source} holds {manifest.name} {manifest.version} under another name: fetch it again")
    target = models / version.parent.name / version.name
    if target.exists():
        if read_manifest(target) != manifest:
            raise ArtifactError(f"{target} exists and is a different model: remove it, or choose another --models")
        verify(target)
        return target
    target.parent.mkdir(exist_ok=True)
    version.rename(target)
    return target


def _unpacked(file: Path, scratch: Path) -> Path:
    """Unpack the files of one version; return its folder."""
    versions: set[Path] = set()
    left = MAX_BYTES
    try:
        with tarfile.open(file, "r:gz") as archive:
            for member in archive:
                parts = _MEMBER.fullmatch(member.name) if member.isreg() else None
                if parts is None or parts[3] not in KNOWN_FILES:
                    raise ArtifactError(f"it holds {member.name!r:.80}, which is not a file of a model")
                left -= member.size
                if left < 0:
                    raise ArtifactError(f"its files exceed {MAX_BYTES >> 30} GiB")
                folder = scratch / "unpacked" / parts[1] / parts[2]
                folder.mkdir(parents=True, exist_ok=True)
                versions.add(folder)
                content = archive.extractfile(member)
                assert content is not None
                with (folder / parts[3]).open("wb") as target:
                    shutil.copyfileobj(content, target, CHUNK)
        if len(versions) != 1:
            raise ArtifactError(f"it holds {len(versions)} versions")
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, ArtifactError) as error:
        raise ArtifactError(f"not a model archive: {error}; make one with `lpc models pack`") from error
    return versions.pop()


def _published(source: str) -> str:
    """Return the checksum of a source in the `SHA256SUMS` next to it."""
    folder, slash, name = source.rpartition("/")
    name = urllib.parse.unquote(name.partition("?")[0])
    advice = "give the publisher's checksum as --sha256"
    try:
        with _open(f"{folder}{slash}{SUMS}") as file:
            lines = _read(file, SUMS).decode("utf-8", "replace").splitlines()
    except ArtifactError as error:
        raise ArtifactError(f"{source} has no {SUMS} next to it ({error}): {advice}") from error
    for line in lines:
        digest, _, of = line.partition(" ")
        if of.lstrip(" *").removeprefix("./") == name:
            return digest
    raise ArtifactError(f"the {SUMS} next to {source} does not list it: {advice}")


def _copy(source: str, target: Path, progress: Progress) -> str:
    """Copy a source to a file; return its SHA-256."""
    digest = hashlib.sha256()
    with _open(source) as origin, target.open("wb") as file:
        while chunk := _read(origin, source):
            digest.update(chunk)
            file.write(chunk)
            progress(len(chunk))
    return digest.hexdigest()


def _open(source: str) -> IO[bytes]:
    """Open a path or address for reading. Raises ArtifactError."""
    if "://" in source and not source.startswith(("http://", "https://")):
        raise ArtifactError(f"{source} is neither a file nor an http(s) address")
    try:
        if "://" not in source:
            return Path(source).open("rb")
        opened: IO[bytes] = urllib.request.urlopen(source, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        raise ArtifactError(f"{source}: the server answers {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise ArtifactError(f"{source} cannot be reached: {error.reason}") from error
    except OSError as error:
        raise ArtifactError(f"{source} cannot be read: {error.strerror or error}") from error
    return opened


def _read(file: IO[bytes], source: str) -> bytes:
    try:
        return file.read(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise ArtifactError(f"{source} cannot be read to its end: {error}") from error
