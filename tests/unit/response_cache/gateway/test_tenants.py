"""Salts and names of conversations, which keep an engine's tenants apart."""

import json
from pathlib import Path
from typing import Any

import pytest

from response_cache.gateway.clients import ANONYMOUS, EXTRA, NAMES, REFUSED, USERS, SaltKeyError, Tenants, read_key, text_at
from response_cache.gateway.errors import GatewayError

TENANTS = Tenants(b"k" * 32)


def sent(tenant: str, body: bytes) -> tuple[bytes, Any, str | None]:
    """Return the body for the engine, its fields, and its salt."""
    changed = TENANTS.apply(tenant, json.loads(body), body)
    return changed, json.loads(changed), json.loads(changed).get("cache_salt")


def nested(path: tuple[str, ...], value: Any) -> Any:
    """Return an object with a value at a path."""
    for name in reversed(path):
        value = {name: value}
    return value


def test_only_a_salt_is_added_to_a_body() -> None:
    for body in (b'{ "a" : 1.50, "b":[ ]}', b"{}", b"{ }"):
        changed, said, salt = sent("t", body)
        assert said == {"cache_salt": salt, **json.loads(body)}
        assert changed.endswith(body[1:]) and salt is not None and len(salt) == 64
    assert sent(ANONYMOUS, b'{ "a" : 1.50}') == (b'{ "a" : 1.50}', {"a": 1.5}, None)


def test_the_engine_never_gets_a_clients_own_salt() -> None:
    salts = {
        sent(tenant, body)[2] for tenant in ("t", "u", ANONYMOUS) for body in (b'{"cache_salt": "s"}', b'{"cache_salt": "r"}')
    }
    assert len(salts | {TENANTS.salt("t"), TENANTS.salt("u")}) == 8 and None not in salts
    for body in (b'{"cache_salt": null}', b'{"cache_salt": 7}', b' {"a": 1}'):
        changed, said, salt = sent("t", body)
        assert said["cache_salt"] == salt and changed.count(b"cache_salt") == 1
    for path in NAMES:
        fields: Any = 7
        for name in reversed(path):
            fields = {name: fields}
        assert b":7" not in sent("t", json.dumps(fields).encode())[0]


@pytest.mark.parametrize("path", NAMES, ids=".".join)
def test_the_engine_gets_another_name_for_each_tenants_conversation(path: tuple[str, ...]) -> None:
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


@pytest.mark.parametrize("path", USERS, ids=".".join)
def test_no_tenant_can_name_the_user_of_another_one(path: tuple[str, ...]) -> None:
    body = json.dumps(nested(path, "alice")).encode()
    names = [text_at(sent(tenant, body)[1], path) for tenant in ("t", "u", ANONYMOUS)]

    assert len(set(names)) == 3 and names[2] == "alice"
    assert all(name is not None and len(name) == 64 for name in names[:2])
    with pytest.raises(GatewayError, match="spell the field user_id in lower case"):
        sent("t", json.dumps(nested((*path[:-1], "USER_ID"), "alice")).encode())


@pytest.mark.parametrize("path", [*REFUSED, *((EXTRA, *path) for path in REFUSED)], ids=".".join)
def test_a_tenant_cannot_name_what_an_engine_keeps_for_others(path: tuple[str, ...]) -> None:
    fields: Any = {"remote_block_ids": [1]}
    for name in reversed(path):
        fields = {name: fields}
    body = json.dumps(fields).encode()
    with pytest.raises(GatewayError, match=f"leave out the field {'.'.join(path)}") as refused:
        TENANTS.apply("t", fields, body)
    assert refused.value.status == 400
    assert TENANTS.apply(ANONYMOUS, fields, body) == body
    shouted = {path[0].upper() if len(path) == 1 else path[0]: fields[path[0]]}
    with pytest.raises(GatewayError):
        TENANTS.apply("t", shouted, json.dumps(shouted).encode())
    absent: Any = None
    for name in reversed(path):
        absent = {name: absent}
    assert sent("t", json.dumps(absent).encode())[2]


@pytest.mark.parametrize("name", ["Cache_Salt", "cache_\u017falt", "\u017fe\u017f\u017fion_id"])
def test_another_spelling_of_a_name_that_some_parsers_accept_is_refused(name: str) -> None:
    for path in ((name,), (EXTRA, name), ("nvext", name)):
        with pytest.raises(GatewayError, match="in lower case"):
            sent("t", json.dumps(nested(path, "mine")).encode())


STEERING = [
    *("kv_transfer_params", "ec_transfer_params", "kv_hints", "retention_directives", "retention_scope"),
    *("bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key", "encoder_urls", "decode_tp_size"),
    *("data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank", "http_worker_ipc", "priority"),
    *("custom_logit_processor", "previous_response_id"),
]
"""Fields of vLLM's and SGLang's own request classes, and of vllm#38514."""


@pytest.mark.parametrize("name", STEERING)
def test_fields_that_steer_an_engine_are_refused_wherever_it_reads_them(name: str) -> None:
    for holder in ((), ("vllm_xargs",), (EXTRA,), (EXTRA, "vllm_xargs")):
        with pytest.raises(GatewayError, match="leave out the field"):
            sent("t", json.dumps(nested((*holder, name), "x")).encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"lora_path": "a", "extra_key": "k", "rid": "r", "request_id": "r", "service_tier": "priority"},
        {"custom_params": {"lpc_retain_seconds": 9}, "vllm_xargs": {"lpc_done": 1}, "prompt_cache_retention": "24h"},
        {"metadata": {"priority": 1}, "messages": [{"role": "user", "content": "kv_hints"}], "priority": None},
    ],
)
def test_fields_of_a_tenants_own_request_reach_the_engine(fields: dict[str, Any]) -> None:
    assert sent("t", json.dumps(fields).encode())[1].items() >= fields.items()


def test_gateways_with_the_same_key_file_make_the_same_salts(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("5a" * 32 + "\n")
    one, two = (Tenants(read_key(tmp_path / "key")) for _ in range(2))
    assert one.salt("t") == two.salt("t") != Tenants(read_key(None)).salt("t")
    (tmp_path / "key").write_text("short")
    for path in (tmp_path / "key", tmp_path / "nowhere"):
        with pytest.raises(SaltKeyError, match=r"fewer than 32|No such file"):
            read_key(path)
