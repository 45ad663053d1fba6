"""The gateway's settings, and the identity of its clients."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lpc.wire.headers import Headers
from lpc.wire.tokens import TokenFileError
from response_cache.gateway.clients import Client, Clients, scope_of
from response_cache.gateway.errors import GatewayError
from response_cache.gateway.settings import GatewaySettings
from response_cache.gateway.targets import Paths


def test_engines_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPC_GATEWAY_ENGINES", "http://a:8000/, https://b/prefix")
    assert GatewaySettings().gateway_engines == ("http://a:8000", "https://b/prefix")


def test_additional_paths_are_proxied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPC_GATEWAY_PATHS", "GET /v1/responses/*, POST /v1/responses/*/cancel")
    paths = Paths(GatewaySettings().gateway_paths)
    paths.check("GET", "/v1/responses/a")
    paths.check("POST", "/v1/responses/a/cancel")
    for path in ("/v1/responses/a/b", "/v1/responses/a/cancel/b"):
        with pytest.raises(GatewayError):
            paths.check("POST", path)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"gateway_engines": ""}, "name at least one engine"),
        ({"gateway_engines": "a:8000"}, "must be http://host:port"),
        ({"gateway_engines": "http://user:secret@a"}, "must be http://host:port"),
        ({"gateway_engines": "http://a/v1"}, "remove /v1"),
        ({"gateway_engines": "http://a,http://a"}, "named twice"),
        ({"gateway_engine_key": "secret"}, "set tokens"),
        ({"tls_key": "k.pem"}, "set both or none"),
        ({"gateway_identity_headers": "a b"}, "name of a header field"),
        ({"gateway_max_held_bytes": 2**20}, "at least max_request_bytes"),
        ({"gateway_scopes": {"a": ["no scope"]}}, "invalid scope name"),
        *(
            ({"gateway_paths": path}, "METHOD /path")
            for path in ("/a", "GET a", "GET /a/../b", "GET /a//b", "get /a", "GET /lpc/x", "GET /%2e")
        ),
    ],
)
def test_invalid_settings_are_refused_without_quoting_them(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why) as caught:
        GatewaySettings(**settings)
    assert "secret" not in str(caught.value)


def identified(headers: Headers, **settings: Any) -> Client:
    client = Clients(GatewaySettings(**settings)).identify(headers)
    assert client is not None
    return client


def test_callers_with_the_same_identity_headers_are_one_client() -> None:
    names = (b"authorization", b"api-key", b"cookie", b"x-forwarded-user", b"openai-organization", b"openai-project")
    shown = [[(name, value)] for name in names for value in (b"Bearer a", b"Bearer b")]
    tenants = [identified(headers).tenant for headers in [[], *shown]]
    assert len(set(tenants)) == 13
    assert not any("Bearer" in tenant for tenant in tenants)
    one, two = [(b"x-forwarded-user", b"a"), (b"cookie", b"c")], [(b"cookie", b"c"), (b"x-forwarded-user", b"a")]
    assert identified(one).tenant == identified(two).tenant != identified(one[:1]).tenant
    assert (
        identified([(b"x-user", b"a")], gateway_identity_headers="X-User").tenant
        != identified([], gateway_identity_headers="X-User").tenant
    )
    assert identified([(b"cookie", b"a")], gateway_identity_headers="x-user").tenant == "anonymous"


@pytest.mark.parametrize("value", [b"", b" ", b"Bearer", b"Bearer ", b"Bearer EMPTY", b"bearer empty", b"EMPTY"])
def test_an_empty_credential_identifies_nobody(value: bytes) -> None:
    assert identified([(b"authorization", value)]).tenant == "anonymous"


def test_only_callers_that_a_header_identifies_are_cached_unless_the_operator_allows_it() -> None:
    shared = [(b"authorization", b"Bearer of-the-engine"), (b"api-key", b"k"), (b"x-api-key", b"k")]
    for headers in ([], shared):
        assert not identified(headers).cached
        assert identified(headers, gateway_cache_anonymous=True).cached
    for name in (b"x-forwarded-user", b"openai-organization", b"openai-project", b"cookie"):
        assert identified([*shared, (name, b"a")]).cached
        assert not identified([*shared, (name, b"")]).cached


def test_users_of_a_client_with_a_token_are_different_tenants(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"a: {sha256(b'1').hexdigest()}\n")
    token = (b"authorization", b"Bearer 1")
    clients = [identified([token, *more], tokens=path) for more in ([], [(b"x-forwarded-user", b"u")], [(b"cookie", b"u")])]
    assert clients[0].tenant == "client:a" and all(client.cached for client in clients)
    assert len({client.tenant for client in clients}) == 3


def test_two_tokens_with_one_name_are_one_client_and_a_new_file_applies_at_once(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    lines = [f"{name}: {sha256(token).hexdigest()}\n" for name, token in (("a", b"1"), ("a", b"2"), ("b", b"3"))]
    path.write_text("".join(lines))
    clients = Clients(GatewaySettings(tokens=path, gateway_scopes={"a": ("faq",), "*": ("code",)}))
    one, two, three = (clients.identify([(b"authorization", b"Bearer " + token)]) for token in (b"1", b"2", b"3"))
    assert one == two and one is not None and three is not None
    assert one.tenant != three.tenant
    assert (scope_of([(b"x-lpc-scope", b"faq")], one), scope_of([(b"x-lpc-scope", b"faq")], three)) == ("faq", None)
    assert (scope_of([(b"x-lpc-scope", b"code")], one), scope_of([(b"x-lpc-scope", b"code")], three)) == (None, "code")
    path.write_text(lines[2])
    clients.refresh()
    assert clients.identify([(b"authorization", b"Bearer 1")]) is None
    path.write_text("broken")
    clients.refresh()
    assert clients.identify([(b"authorization", b"Bearer 3")]) == three


def test_the_gateway_does_not_start_with_a_token_file_without_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("# nothing\n")
    with pytest.raises(TokenFileError, match="has no token"):
        Clients(GatewaySettings(tokens=tmp_path / "tokens"))


def test_gateways_that_share_requests_need_a_common_secret(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="gateway_redis_url needs gateway_salt_key_file"):
        GatewaySettings(gateway_redis_url="redis://127.0.0.1:6379/0")  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="cannot be parsed"):
        GatewaySettings(gateway_redis_url="127.0.0.1:6379", gateway_salt_key_file=tmp_path)  # type: ignore[arg-type]
