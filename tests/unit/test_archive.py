"""A version travels as one file: whole, checked, or not at all."""

import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lpc.errors import ArtifactError
from lpc.model.archive import SUMS, pack, pull
from lpc.model.artifact import Manifest, file_sha256, verify
from lpc.model.features import FeatureSettings

TIME = 1_700_000_000


def make_version(models: Path, version: str = "v1", content: str = "graph") -> Path:
    folder = models / "tiny" / version
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_text(content)
    (folder / "tokenizer.json").write_text("{}")
    files = {name: file_sha256(folder / name) for name in ("model.onnx", "tokenizer.json")}
    manifest = Manifest("tiny", version, "int8", files, FeatureSettings(), 4, "e", "0", {}, {}, "2026-01-01T00:00:00+00:00")
    (folder / "manifest.json").write_text(manifest.to_json())
    return folder


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The file of a version, with SHA256SUMS beside it."""
    (tmp_path / "site").mkdir()
    file = pack(make_version(tmp_path / "there"), tmp_path / "site", time=TIME)
    (tmp_path / "site" / SUMS).write_text(f"{file_sha256(file)}  {file.name}\n")
    return file


@pytest.fixture
def site(published: Path) -> Iterator[str]:
    """The address of a real web server with that file."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(published.parent))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_a_file_is_pulled_by_the_sums_beside_it_and_kept_when_pulled_again(tmp_path: Path, published: Path) -> None:
    folder = pull(str(published), tmp_path / "here")
    assert folder == tmp_path / "here/tiny/v1"
    assert verify(folder).version == "v1"
    before = (folder / "manifest.json").stat().st_mtime_ns
    assert pull(str(published), tmp_path / "here") == folder
    assert (folder / "manifest.json").stat().st_mtime_ns == before
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["tiny"]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{site}none.tar.gz", "the server answers 404"),
        ("http://127.0.0.1:1/x.tar.gz", "cannot be reached"),
        ("ftp://host/x.tar.gz", "is neither a file nor an http"),
        ("/nowhere/x.tar.gz", "cannot be read: No such file"),
    ],
)
def test_what_cannot_be_fetched_is_said_and_leaves_nothing(tmp_path: Path, site: str, source: str, why: str) -> None:
    with pytest.raises(ArtifactError, match=why):
        pull(source.format(site=site), tmp_path / "here", sha256="0" * 64)
    assert not list((tmp_path / "here").iterdir())


def test_another_checksum_is_refused_and_leaves_nothing(tmp_path: Path, published: Path) -> None:
    with published.open("ab") as file:
        file.write(b"!")
    with pytest.raises(ArtifactError, match="it is damaged or another file; nothing was installed"):
        pull(str(published), tmp_path / "here")
    assert not list((tmp_path / "here").iterdir())
    with pytest.raises(ArtifactError, match="give 64 hexadecimal digits"):
        pull(str(published), tmp_path / "here", sha256="abc")
    (published.parent / SUMS).write_text("0  other\n")
    with pytest.raises(ArtifactError, match="does not list it"):
        pull(str(published), tmp_path / "here")


def archive_of(path: Path, members: dict[str, bytes], kind: bytes = tarfile.REGTYPE) -> str:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.type, entry.linkname = len(content), kind, "/etc/passwd"
            archive.addfile(entry, io.BytesIO(content) if kind == tarfile.REGTYPE else None)
    return file_sha256(path)


@pytest.mark.parametrize(
    "name",
    ["../../escaped", "/etc/escaped", "tiny/v1/../../escaped", "../v1/model.onnx", ".hidden/v1/model.onnx", "model.onnx"],
)
def test_a_file_that_would_write_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    digest = archive_of(tmp_path / "a.tar.gz", {name: b"x"})
    with pytest.raises(ArtifactError, match="which is not a file of a model"):
        pull(str(tmp_path / "a.tar.gz"), tmp_path / "here", sha256=digest)
    assert not list((tmp_path / "here").iterdir())
    assert not list(tmp_path.rglob("escaped"))


def test_a_link_and_what_is_no_archive_are_refused(tmp_path: Path) -> None:
    digest = archive_of(tmp_path / "a.tar.gz", {"tiny/v1/model.onnx": b""}, tarfile.SYMTYPE)
    with pytest.raises(ArtifactError, match="which is not a file of a model"):
        pull(str(tmp_path / "a.tar.gz"), tmp_path / "here", sha256=digest)
    (tmp_path / "b.tar.gz").write_text("<html>")
    with pytest.raises(ArtifactError, match="not a model archive"):
        pull(str(tmp_path / "b.tar.gz"), tmp_path / "here", sha256=hashlib.sha256(b"<html>").hexdigest())
