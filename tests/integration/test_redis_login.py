"""User and password of Redis: any characters, in the URL, in settings of their own or in a file; what is said of wrong ones."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eviction_client.errors import StoreError
from eviction_client.settings import ClientSettings
from lpc.wire.redis_connection import RedisUrl
from testing.processes import RedisServer
from tests.redis_stores import BLOCKS, A, ends, flushed, record, storing

AWKWARD = "a/b#c?d%e@f:g[h]i j%41"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Lets in the user `engine` with the awkward password, and its administrator without one."""
    with RedisServer(tmp_path_factory.mktemp("locked")) as server, contextlib.closing(server.client()) as admin:
        admin.execute_command("ACL", "SETUSER", "engine", "on", f">{AWKWARD}", "~lpc:*", "+@all")
        yield server


def settings(**values: object) -> ClientSettings:
    return ClientSettings(redis_timeout_s=5, **values)  # type: ignore[arg-type]


def at(server: RedisServer, userinfo: str = "") -> str:
    return f"redis://{userinfo}127.0.0.1:{server.port}/0"


@given(st.text(min_size=1), st.text(min_size=1))
def test_every_user_and_password_can_be_written_into_a_url(user: str, password: str) -> None:
    parsed = RedisUrl.parse(f"redis://{quote(user, safe='')}:{quote(password, safe='')}@host:7000/0")
    assert (parsed.user, parsed.password, parsed.where) == (user, password, "host:7000")
    assert parsed.bare == "redis://host:7000/0"
    assert repr(parsed) == repr(RedisUrl.parse(f"redis://{quote(user, safe='')}:{quote(password + 'x', safe='')}@host:7000/0"))


@pytest.mark.parametrize("mark", ["/", "#", "?", "%", "[", "]", "/0#", "1/", "1#", "1?"])
def test_a_raw_mark_in_the_password_is_one_error_that_says_what_to_do(mark: str, locked: RedisServer) -> None:
    with pytest.raises(ValueError, match=r"write / as %2F.*LPC_REDIS_PASSWORD_FILE") as caught:
        settings(redis_url=at(locked, f"engine:s3{mark}cret@"))
    assert "s3" not in str(caught.value) and "cret" not in str(caught.value)


def test_a_password_file_is_read_at_each_connection(locked: RedisServer, tmp_path: Path) -> None:
    file = tmp_path / "password"
    with storing(at(locked, "engine@"), password_file=file) as store:
        record(store, A, BLOCKS, 1.0)
        with pytest.raises(StoreError, match="No such file"):
            store.check()
        file.write_text("")
        with pytest.raises(StoreError, match="empty"):
            store.check()
        file.write_text("wrong\n")
        with pytest.raises(StoreError, match="refuses this user or password"):
            store.check()
        assert not store.flush() and store.failures
        file.write_text(f"{AWKWARD}\n")
        assert flushed(store)
        assert ends(store, BLOCKS) == [1.0] * len(BLOCKS)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"redis_url": "redis://u:p@h", "redis_password_file": "f"}, "remove one of them"),
        ({"redis_password_file": "f"}, "set LPC_REDIS_URL"),
    ],
)
def test_contradicting_settings_are_refused(values: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        settings(**values)
