"""Header fields that reach an engine."""

from urllib.parse import unquote

import pytest

from lpc.cache.v1 import response_cache_pb2 as pb
from response_cache.gateway.clients import ANONYMOUS, REFUSED_HEADERS, Tenants
from response_cache.gateway.errors import GatewayError
from response_cache.gateway.headers import ENGINE_KEYS, LONGEST_QUESTION, for_engine, question_value, without_credentials

CREDENTIALS = (
    *("authorization", "proxy-authorization", "api-key", "x-api-key", "x-goog-api-key", "x-apikey", "xi-api-key", "apikey"),
    *("cookie", "x-auth-token", "x-access-token", "x-amz-security-token", "x-vault-token", "x-auth-key", "helicone-auth"),
    *("ocp-apim-subscription-key", "x-functions-key", "x-litellm-key", "x-portkey-virtual-key", "x-client-secret", "password"),
    *("x-forwarded-access-token", "x-forwarded-authorization", "x-auth-request-access-token", "x-ms-token-aad-id-token"),
    *("cf-access-jwt-assertion", "x-goog-iap-jwt-assertion", "x-amzn-oidc-accesstoken", "x-amzn-oidc-data", "x-csrf-token"),
)
OTHERS = (
    *("accept", "accept-encoding", "content-type", "user-agent", "x-request-id", "x-session-id", "openai-organization"),
    *("traceparent", "tracestate", "x-forwarded-user", "idempotency-key", "x-smg-routing-key", "x-max-tokens", "x-keyboard"),
    *(
        "anthropic-version",
        "anthropic-beta",
        "x-stainless-lang",
        "x-stainless-retry-count",
        "author",
        "monkey",
        "x-cookies-accepted",
    ),
)


def reach(*names: str, key: str | None = None, keep_keys: bool = False) -> dict[str, str]:
    """Return the fields that an engine gets of a request with these."""
    fields = for_engine([(name.title().encode(), b"of the client") for name in names], None, key, keep_keys)
    return {name.decode(): value.decode() for name, value in fields}


def test_a_clients_credentials_never_reach_an_engine() -> None:
    assert reach(*CREDENTIALS) == {}
    assert reach(*CREDENTIALS, key="k") == {"authorization": "Bearer k"}


def test_only_keys_that_are_the_engines_pass_if_the_gateway_has_no_tokens() -> None:
    assert set(reach(*CREDENTIALS, keep_keys=True)) == {name.decode() for name in ENGINE_KEYS}


def test_other_fields_reach_an_engine() -> None:
    assert set(reach(*OTHERS)) == set(OTHERS)


@pytest.mark.parametrize("name", REFUSED_HEADERS, ids=bytes.decode)
def test_no_tenant_can_name_an_engine_or_its_blocks_in_a_header_field(name: bytes) -> None:
    headers = [(b"accept", b"*/*"), (name + b"rid", b"mine")]
    with pytest.raises(GatewayError, match=f"leave out the header field {name.decode()}rid") as refused:
        Tenants.check_headers("t", headers)
    assert refused.value.status == 400
    Tenants.check_headers("t", headers[:1])
    Tenants.check_headers(ANONYMOUS, headers)


@pytest.mark.parametrize(
    "name",
    (
        *("api_key", "api-key", "API_KEY", "apikey", "key", "access_token", "token", "auth", "password", "client_secret"),
        *("x-amz-signature", "sig", "api%5Fkey", "%61pi_key", "api_key[]", "auth.token", "+api_key", "subscription-key"),
    ),
)
def test_a_credential_in_the_query_never_reaches_an_engine(name: str) -> None:
    one = f"{name}=secret".encode()
    assert without_credentials(one) == b""
    assert without_credentials(b"a=1&" + one) == b"a=1"
    assert without_credentials(one + b"&a=1&&b") == b"a=1&&b"
    assert without_credentials(b"a=1;" + one + b";b=2") == b"a=1;b=2"


@pytest.mark.parametrize("query", [b"", b"&", b"a", b"api-version=1&max_tokens=2", b"q=api_key%3D1&cache_key=2", b"beta=true&"])
def test_any_other_query_stays_as_it_is(query: bytes) -> None:
    assert without_credentials(query) == query


@pytest.mark.parametrize("text", ["a\r\nset-cookie: b", "𝒳" * 400, "é" * 2000, "%", "\x00\x7f", "a" * 5000])
def test_a_question_in_a_header_is_one_short_line_of_ascii(text: str) -> None:
    value = question_value(pb.Hit(matched_question=text, question_digest="00")).decode("ascii")
    kind, _, encoded = value.partition("=")
    assert kind == "text" and len(encoded) <= LONGEST_QUESTION and encoded.isprintable() and " " not in encoded
    found = unquote(encoded, errors="strict")
    assert found == text or (found.endswith("…") and text.startswith(found[:-1]) and len(encoded) > LONGEST_QUESTION - 24)


def test_without_its_text_a_question_is_a_digest() -> None:
    assert question_value(pb.Hit(question_digest="0f")) == b"digest=0f"
