"""`lpc secrets`: what it writes, for whom, and what another run leaves alone."""

import os
import ssl
import stat
from hashlib import sha256
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lpc.wire.certificates import CertificateFiles, read
from lpc.wire.tokens import read_tokens
from lpc_cli.cli import app
from response_cache.gateway.clients import read_key
from response_cache.keys.sealing import read_keys


def make(folder: Path, *options: str) -> None:
    done = CliRunner().invoke(app, ["secrets", str(folder), "--engine", *options])
    assert done.exit_code == 0, done.output


def test_engines_have_secrets_only_if_their_sidecar_serves_the_caches(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["secrets", str(tmp_path), "--client", "app"])
    assert done.exit_code == 0 and {path.name for path in tmp_path.iterdir()} == {"caches", "gateway", "clients"}
    assert set(read_tokens(tmp_path / "caches/tokens").values()) == {"gateway"}


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_each_process_gets_its_own_secrets_and_no_others(tmp_path: Path) -> None:
    make(tmp_path, "--client", "app")
    found = contents(tmp_path)
    assert set(found) == {
        *(f"caches/{name}" for name in ("ca.crt", "tls.crt", "tls.key", "tokens", "keys", "redis-password")),
        *(
            "gateway/ca.crt",
            "gateway/token",
            "gateway/clients",
            "gateway/salt-key",
            "engine/ca.crt",
            "engine/token",
            "clients/app",
        ),
    }
    tokens = {
        name: found[name]
        for name in ("gateway/token", "engine/token", "clients/app", "caches/redis-password", "gateway/salt-key")
    }
    assert len(set(tokens.values())) == 5
    assert not [(name, file) for name in tokens for file in found if file != name and tokens[name] in found[file]]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.rglob("*") if path.is_file())
    assert all(stat.S_IMODE((tmp_path / part).stat().st_mode) == 0o700 for part in ("caches", "gateway", "engine", "clients"))


def test_an_open_folder_is_closed_to_other_users(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    make(folder, "--client", "app")
    before = contents(folder)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o666)
    make(folder)
    assert contents(folder) == before
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")} == {0o700, 0o600}


def test_a_new_folder_is_the_users_own_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        make(tmp_path / "new/made")
    finally:
        os.umask(old)
    assert not [path for path in (tmp_path / "new/made").rglob("*") if path.stat().st_mode & 0o077]
    assert stat.S_IMODE((tmp_path / "new/made").stat().st_mode) & 0o022 == 0


@pytest.mark.parametrize("name", ["caches", "caches/keys", "gateway/token", "clients"])
def test_a_link_that_someone_may_have_put_there_is_refused(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    make(folder, "--client", "app")
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    done = CliRunner().invoke(app, ["secrets", str(folder)])
    assert done.exit_code == 1 and f"{name} is a symbolic link" in done.output, done.output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["", "caches", "caches/keys", "clients/app"])
def test_files_of_another_user_are_refused(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    make(folder, "--client", "app")
    os.chown(folder / name, 4321, 4321)
    done = CliRunner().invoke(app, ["secrets", str(folder)])
    assert done.exit_code == 1 and "belongs to user 4321" in done.output, done.output


def test_the_programs_accept_every_file(tmp_path: Path) -> None:
    make(tmp_path, "--client", "app")
    caches = tmp_path / "caches"
    read_keys(caches / "keys")
    assert len(read_key(tmp_path / "gateway/salt-key")) == 64
    known = read_tokens(caches / "tokens")
    for name in ("gateway", "engine"):
        assert known[sha256((tmp_path / name / "token").read_bytes()).digest()] == name
        assert read(CertificateFiles(ca=tmp_path / name / "ca.crt")).ca is not None
    assert set(read_tokens(tmp_path / "gateway/clients").values()) == {"app"}
    assert read(CertificateFiles(caches / "tls.crt", caches / "tls.key")).expires_at is not None


def test_another_run_changes_no_file_and_adds_what_is_missing(tmp_path: Path) -> None:
    make(tmp_path, "--client", "app")
    before = contents(tmp_path)
    make(tmp_path, "--client", "other")
    after = contents(tmp_path)
    clients = "gateway/clients"
    assert {name: text for name, text in after.items() if name in before and name != clients} == {
        name: text for name, text in before.items() if name != clients
    }
    assert after[clients].startswith(before[clients]) and "other: " in after[clients]
    (tmp_path / "engine/token").unlink()
    make(tmp_path)
    known = read_tokens(tmp_path / "caches/tokens")
    # The old one stays until its line is removed, so that engines can take the new one one by one.
    assert sorted(known.values()) == ["engine", "engine", "gateway"]
    assert known[sha256((tmp_path / "engine/token").read_bytes()).digest()] == "engine"


@pytest.mark.parametrize("damage", ["name", "key"])
def test_a_new_name_or_a_lost_key_makes_a_certificate_that_all_readers_trust(damage: str, tmp_path: Path) -> None:
    make(tmp_path)
    before = contents(tmp_path)
    if damage == "key":
        (tmp_path / "caches/tls.key").unlink()
    name = "10.1.2.3" if damage == "name" else "predictor"
    make(tmp_path, "--name", name)
    assert contents(tmp_path)["caches/tls.crt"] != before["caches/tls.crt"]
    for reader in ("gateway", "engine"):
        assert handshake(tmp_path / "caches", tmp_path / reader / "ca.crt", name)


def handshake(caches: Path, authority: Path, name: str) -> bool:
    """Let a server with the caches's files and a client that trusts the authority shake hands in memory."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=authority)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server.load_cert_chain(caches / "tls.crt", caches / "tls.key")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(back, there, server_hostname=name), server.wrap_bio(there, back, server_side=True))
    done: set[ssl.SSLObject] = set()
    while len(done) < 2:
        for end in ends:
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                continue
    return True
