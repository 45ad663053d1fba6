"""The gateway's settings, and who its clients are."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lpc.gateway.clients import Clients, scope_of
from lpc.gateway.errors import NotProxied
from lpc.gateway.settings import GatewaySettings
from lpc.gateway.targets import Paths
from lpc.wire.tokens import TokenFileError


def test_engines_are_named_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPC_GATEWAY_ENGINES", "http://a:8000/, https://b/prefix")
    assert GatewaySettings().gateway_engines == ("http://a:8000", "https://b/prefix")


def test_paths_are_added_to_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPC_GATEWAY_PATHS", "GET /v1/responses/*, POST /v1/responses/*/cancel")
    paths = Paths(GatewaySettings().gateway_paths)
    paths.check("GET", "/v1/responses/a")
    paths.check("POST", "/v1/responses/a/cancel")
    for path in ("/v1/responses/a/b", "/v1/responses/a/cancel/b"):
        with pytest.raises(NotProxied):
            paths.check("POST", path)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"gateway_engines": ""}, "name at least one engine"),
        ({"gateway_engines": "a:8000"}, "must be http://host:port"),
        ({"gateway_engines": "http://user:secret@a"}, "must be http://host:port"),
        ({"gateway_engines": "http://a/v1"}, "leave /v1 out"),
        ({"gateway_engines": "http://a,http://a"}, "named twice"),
        ({"gateway_engine_key": "secret"}, "set gateway_tokens too"),
        ({"gateway_tls_key": "k.pem"}, "set both or none"),
        ({"gateway_scopes": {"a": ["no scope"]}}, "a scope's name"),
        *(
            ({"gateway_paths": path}, "METHOD /path")
            for path in ("/a", "GET a", "GET /a/../b", "GET /a//b", "get /a", "GET /lpc/x", "GET /%2e")
        ),
    ],
)
def test_settings_that_cannot_be_are_refused_without_their_values(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why) as caught:
        GatewaySettings(**settings)
    assert "secret" not in str(caught.value)


def test_a_client_without_a_token_of_ours_is_who_shows_the_same_key() -> None:
    clients = Clients(GatewaySettings())
    shown = [[(name, value)] for name in (b"authorization", b"api-key", b"cookie") for value in (b"Bearer a", b"Bearer b")]
    tenants = [clients.who(headers) for headers in [[], *shown]]
    assert len({tenant.tenant for tenant in tenants if tenant is not None}) == 7
    assert all(tenant is not None and "Bearer" not in tenant.tenant for tenant in tenants)


def test_two_tokens_of_a_name_are_one_client_and_a_new_file_counts_at_once(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    lines = [f"{name}: {sha256(token).hexdigest()}\n" for name, token in (("a", b"1"), ("a", b"2"), ("b", b"3"))]
    path.write_text("".join(lines))
    clients = Clients(GatewaySettings(gateway_tokens=path, gateway_scopes={"a": ("faq",), "*": ("code",)}))
    one, two, three = (clients.who([(b"authorization", b"Bearer " + token)]) for token in (b"1", b"2", b"3"))
    assert one == two and one is not None and three is not None
    assert one.tenant != three.tenant
    assert (scope_of([(b"x-lpc-scope", b"faq")], one), scope_of([(b"x-lpc-scope", b"faq")], three)) == ("faq", None)
    assert (scope_of([(b"x-lpc-scope", b"code")], one), scope_of([(b"x-lpc-scope", b"code")], three)) == (None, "code")
    path.write_text(lines[2])
    clients.refresh()
    assert clients.who([(b"authorization", b"Bearer 1")]) is None
    path.write_text("broken")
    clients.refresh()
    assert clients.who([(b"authorization", b"Bearer 3")]) == three


def test_a_file_without_a_token_lets_nobody_start(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("# nothing\n")
    with pytest.raises(TokenFileError, match="holds no token"):
        Clients(GatewaySettings(gateway_tokens=tmp_path / "tokens"))
