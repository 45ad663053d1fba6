"""Digests of the names that callers choose."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from eviction_client.policy.hints import NO_HINTS, Hints
from eviction_client.tenants import digest_of
from lpc.wire.session import WHOLE, hashed, key_of, name_of

ANY = st.text(st.characters(exclude_categories=()), max_size=40)
LONG = st.integers(WHOLE - 5, WHOLE + 5).flatmap(lambda size: st.text("ab\ud800\U0001f600", min_size=size, max_size=size))


@given(ANY | LONG, ANY | LONG)
def test_short_names_have_digests_of_their_own_whatever_characters_they_contain(one: str, other: str) -> None:
    assert len(name_of(one)) == 32 and len(digest_of(one)) == (16 if one else 0)
    if min(len(one), len(other)) <= WHOLE:
        assert (hashed(one) == hashed(other)) == (one == other)


def test_of_an_over_long_name_a_bounded_part_is_hashed() -> None:
    long = "\U0001f600" * (1 << 20)
    assert len(hashed(long)) < 5 * WHOLE
    names = [long, long + "a", "a" + long, long[:-1]]
    assert len({name_of(name) for name in names}) == len({digest_of(name) for name in names}) == 4


def test_a_caller_without_a_tenants_salt_cannot_get_a_name_of_the_tenant() -> None:
    long = "s" * 10 * WHOLE
    assert len({name_of("c", salt) for salt in ("", "a", "b", long, long + "s")}) == 5
    shown = hashed(long).decode()  # what stands for an over-long name is not itself a short name
    assert len(shown) > WHOLE and name_of(shown) != name_of(long) and digest_of(shown) != digest_of(long)


def test_only_an_over_long_id_of_a_request_is_replaced() -> None:
    assert key_of("chatcmpl-1") == "chatcmpl-1"
    assert len(key_of("x" * (1 << 20))) == 32


def test_a_tenants_digest_is_what_b2sum_prints() -> None:
    assert digest_of("salt") == hashlib.blake2b(b"salt", digest_size=8).hexdigest()
    assert digest_of(None) == digest_of("") == ""


def test_hints_with_long_values_are_not_read() -> None:
    assert Hints.of({"lpc_retain_seconds": "1" * (1 << 20), "lpc_done": " " * (1 << 20) + "true"}) is NO_HINTS
    assert Hints.of({"lpc_retain_seconds": "12", "lpc_done": " True "}) == Hints(12.0, done=True)
