"""Salts and names of conversations by which an engine's tenants are kept apart."""

import json
from pathlib import Path
from typing import Any

import pytest

from lpc_apps.gateway.clients import ANONYMOUS, NAMES, SaltKeyError, Tenants, read_key, text_at

TENANTS = Tenants(b"k" * 32)


def sent(tenant: str, body: bytes) -> tuple[bytes, Any, str | None]:
    changed, salt = TENANTS.apply(tenant, json.loads(body), body)
    return changed, json.loads(changed), salt


def test_a_salt_is_put_before_the_first_field_and_all_else_stays() -> None:
    for body in (b'{ "a" : 1.50, "b":[ ]}', b"{}", b"{ }"):
        changed, said, salt = sent("t", body)
        assert said == {"cache_salt": salt, **json.loads(body)}
        assert changed.endswith(body[1:]) and salt is not None and len(salt) == 64
    assert sent(ANONYMOUS, b'{ "a" : 1.50}') == (b'{ "a" : 1.50}', {"a": 1.5}, None)


def test_a_clients_own_salt_is_combined_and_never_sent() -> None:
    salts = {
        sent(tenant, body)[2] for tenant in ("t", "u", ANONYMOUS) for body in (b'{"cache_salt": "s"}', b'{"cache_salt": "r"}')
    }
    assert len(salts | {TENANTS.salt("t"), TENANTS.salt("u")}) == 8 and None not in salts
    for body in (b'{"cache_salt": "s", "cache_salt": "own"}', b'{"cache_salt": null}', b'{"cache_salt": 7}', b' {"a": 1}'):
        changed, said, salt = sent("t", body)
        assert said["cache_salt"] == salt and changed.count(b"cache_salt") == 1 and b"own" not in changed
    utf16 = json.dumps({"a": 1}).encode("utf-16")
    changed, salt = TENANTS.apply("t", {"a": 1}, utf16)
    assert json.loads(changed) == {"a": 1, "cache_salt": salt}


@pytest.mark.parametrize("path", NAMES, ids=".".join)
def test_a_conversations_name_is_the_tenants_own(path: tuple[str, ...]) -> None:
    fields: Any = "mine"
    for name in reversed(path):
        fields = {name: fields, "other": 1}
    names = []
    for tenant in ("t", "u", ANONYMOUS):
        said = sent(tenant, json.dumps(fields).encode())[1]
        names.append(text_at(said, path))
        for name in path:
            assert said["other"] == 1
            said = said[name]
    assert names == [TENANTS.session("t", "mine"), TENANTS.session("u", "mine"), "mine"]
    assert len(set(names)) == 3


def test_gateways_agree_if_they_have_the_same_key_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("5a" * 32 + "\n")
    one, two = (Tenants(read_key(tmp_path / "key")) for _ in range(2))
    assert one.salt("t") == two.salt("t") != Tenants(read_key(None)).salt("t")
    (tmp_path / "key").write_text("short")
    for path in (tmp_path / "key", tmp_path / "nowhere"):
        with pytest.raises(SaltKeyError, match=r"fewer than 32|No such file"):
            read_key(path)
