"""A version of a model as one file, to publish and to fetch: a gzipped tar of `<model>/<version>/` and its files.

A file is taken only with a checksum that came another way: given by the user, or from the `SHA256SUMS` next to it. What is in
it is then compared with the manifest's checksums as ever, and appears in the repository whole or not at all.
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
MOST_BYTES: Final = 4 * 2**30
"""Of all files of a version."""
KEPT: Final = frozenset((*FILES, MANIFEST))
CHUNK: Final = 2**20
_MEMBER: Final = re.compile(r"(\w[\w.-]*)/(\w[\w.-]*)/([\w.-]+)")

Progress = Callable[[int], object]
"""Called with bytes as they arrive."""


def file_name(version: Path) -> str:
    """Return what a version's file is called."""
    return f"learned-prefix-cache-{version.parent.name}-{version.name}.tar.gz"


def pack(version: Path, folder: Path, *, time: int) -> Path:
    """Write a version that is sound into a file in ``folder``; return it. The same version and time give the same bytes.

    Args:
        time: of the files in it, seconds since the epoch.

    Raises:
        ArtifactError: a file of the version is missing or damaged, or the folder cannot be written to.
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
    """Fetch a version's file and put the version into a repository; return its folder. One that is there is kept.

    Args:
        source: path, or http(s) address.
        sha256: of the file, hexadecimal; None: from the `SHA256SUMS` next to it.

    Raises:
        ArtifactError: it cannot be fetched, has another checksum, or is not a version of a model; nothing has changed then.
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
    place = models / version.parent.name / version.name
    if place.exists():
        if read_manifest(place) != manifest:
            raise ArtifactError(f"{place} is there already and is another one: remove it, or choose another --models")
        verify(place)
        return place
    place.parent.mkdir(exist_ok=True)
    version.rename(place)
    return place


def _unpacked(file: Path, scratch: Path) -> Path:
    """Unpack the files of one version; return its folder."""
    versions: set[Path] = set()
    left = MOST_BYTES
    try:
        with tarfile.open(file, "r:gz") as archive:
            for member in archive:
                parts = _MEMBER.fullmatch(member.name) if member.isreg() else None
                if parts is None or parts[3] not in KEPT:
                    raise ArtifactError(f"it holds {member.name!r:.80}, which is not a file of a model")
                left -= member.size
                if left < 0:
                    raise ArtifactError(f"its files have more than {MOST_BYTES >> 30} GiB")
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
        raise ArtifactError(f"this is not a model's file: {error}; `make release` and `lpc models pack` make such") from error
    return versions.pop()


def _published(source: str) -> str:
    """Return the checksum that the `SHA256SUMS` next to a source gives for it."""
    place, slash, name = source.rpartition("/")
    name = urllib.parse.unquote(name.partition("?")[0])
    advice = "give --sha256, as its publisher names it"
    try:
        with _opened(f"{place}{slash}{SUMS}") as file:
            lines = _read(file, SUMS).decode("utf-8", "replace").splitlines()
    except ArtifactError as error:
        raise ArtifactError(f"{source} has no {SUMS} next to it ({error}): {advice}") from error
    for line in lines:
        digest, _, of = line.partition(" ")
        if of.lstrip(" *").removeprefix("./") == name:
            return digest
    raise ArtifactError(f"the {SUMS} next to {source} does not name it: {advice}")


def _copy(source: str, target: Path, progress: Progress) -> str:
    """Write a source into a file; return its SHA-256."""
    digest = hashlib.sha256()
    with _opened(source) as origin, target.open("wb") as file:
        while chunk := _read(origin, source):
            digest.update(chunk)
            file.write(chunk)
            progress(len(chunk))
    return digest.hexdigest()


def _opened(source: str) -> IO[bytes]:
    """Open a path or address for reading. Raises ArtifactError: there is nothing to read."""
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
