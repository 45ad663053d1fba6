"""A Redis with the restricted user of docs/how-to/security.md for stores, and an administrator for the tests' own client."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.processes import RedisServer

SECURITY_PAGE = Path(__file__).parents[1] / "docs/how-to/security.md"


def code_block(containing: str) -> str:
    """Return the code block of docs/how-to/security.md that contains a text."""
    blocks: list[str] = re.findall(r"```(?:bash|text)\n(.*?)```", SECURITY_PAGE.read_text(), re.DOTALL)
    (found,) = [text for text in blocks if containing in text]
    return found


def rules() -> list[str]:
    """Return the ACL rules of the page's user."""
    words = code_block("user engine on").split()
    assert words[:2] == ["user", "engine"]
    return words[2:]


class GuardedRedis(RedisServer):
    """`url` is the restricted user's, `client()` the administrator's."""

    @property
    def url(self) -> str:
        return f"redis://engine:CHANGE-ME@127.0.0.1:{self.port}/0"

    def allow(self, *changes: str) -> None:
        """Set the user's rules from the page, then apply these changes."""
        with contextlib.closing(self.client()) as admin:
            admin.execute_command("ACL", "SETUSER", "engine", "reset", *rules(), *changes)
            admin.execute_command("ACL", "LOG", "RESET")

    def refused(self) -> set[str]:
        """Return the commands refused since :meth:`allow`, except redis-py's CLIENT SETINFO at each connection."""
        with contextlib.closing(self.client()) as admin:
            objects = {entry.get("object", entry.get(b"object")) for entry in admin.execute_command("ACL", "LOG")}
        names = {name.decode() if isinstance(name, bytes) else str(name) for name in objects}
        return {name for name in names if not name.startswith("client|")}


@pytest.fixture(scope="session")
def guarded_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedRedis]:
    """One guarded server for all tests."""
    with GuardedRedis(tmp_path_factory.mktemp("guarded")) as server:
        yield server


@pytest.fixture
def guarded_redis(guarded_session: GuardedRedis) -> GuardedRedis:
    """A running server without data, with the page's user."""
    with contextlib.closing(guarded_session.client()) as client:
        client.flushall()
    guarded_session.allow()
    return guarded_session
