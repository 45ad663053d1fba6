"""Tokens and limits per client, without a server."""

from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc.wire.tokens import TokenFileError
from predictor_service.errors import Overloaded, Unauthenticated
from predictor_service.metrics import Metrics
from predictor_service.rpc.callers import LARGE, Bucket, Caller, CallerLimits, Callers
from tests.clock import Clock

TCP = "ipv4:10.0.0.7:4711"


def line(name: str, token: str) -> str:
    return f"{name}: {sha256(token.encode()).hexdigest()}\n"


def bearer(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


def test_a_bucket_holds_one_second_and_returns_the_wait() -> None:
    clock = Clock(0.0)
    bucket = Bucket(10, clock)
    assert [bucket.take(1) for _ in range(10)] == [0.0] * 10
    assert bucket.take(1) == pytest.approx(0.1)
    clock.now = 0.1
    assert bucket.take(1) == 0.0
    clock.now = 100.0
    assert sum(bucket.take(1) == 0.0 for _ in range(50)) == 10


@given(rate=st.floats(0.1, 1000), steps=st.lists(st.tuples(st.floats(0, 2), st.integers(1, 300)), min_size=1, max_size=100))
def test_a_client_exceeds_its_rate_by_at_most_one_bucket_and_one_batch(rate: float, steps: list[tuple[float, int]]) -> None:
    clock = Clock(0.0)
    bucket = Bucket(rate, clock)
    admitted = 0
    for pause, count in steps:
        clock.now += pause
        before = clock.now
        wait = bucket.take(count)
        if wait == 0.0:
            admitted += count
        else:
            assert wait > 0
        assert admitted <= rate * (before + 1) + max(count for _, count in steps) + 1e-6


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        None,
        bearer("wrong"),
        bearer(""),
        bearer("one two"),
        [("authorization", "Basic one")],
        [("authorization", "one")],
        [("authorization", "Bearer")],
        [("authorization", b"Bearer one")],
        [*bearer("one"), *bearer("one")],
        [("x-authorization", "Bearer one")],
        # The digest is in a file that many may read: it opens nothing.
        bearer(sha256(b"one").hexdigest()),
    ],
)
def test_anything_but_one_known_token_is_refused_with_one_message(tmp_path: Path, metadata: object) -> None:
    path = tmp_path / "tokens"
    path.write_text(line("engine-a", "one"))
    callers = Callers(path, CallerLimits(), Metrics())
    with pytest.raises(Unauthenticated, match=r"^no valid token: send the metadata `authorization: Bearer TOKEN`"):
        callers.enter(TCP, metadata)  # type: ignore[arg-type]


def test_every_known_token_is_compared_in_constant_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What depends on the token shown must not be how many comparisons are made, nor be made by ``==``."""
    import lpc.wire.tokens as module

    path = tmp_path / "tokens"
    path.write_text("".join(line(f"c{n}", f"token-{n}") for n in range(20)))
    callers = Callers(path, CallerLimits(), Metrics())
    compared: list[bool] = []
    honest = module.hmac.compare_digest

    def counting(a: bytes, b: bytes) -> bool:
        compared.append(honest(a, b))
        return compared[-1]

    monkeypatch.setattr(module.hmac, "compare_digest", counting)
    for token in ("token-0", "token-19", "wrong"):
        compared.clear()
        try:
            callers.enter(TCP, bearer(token))
        except Unauthenticated:
            assert token == "wrong"
        assert len(compared) == 20
    monkeypatch.setattr(module.hmac, "compare_digest", lambda a, b: False)
    with pytest.raises(Unauthenticated):
        callers.enter(TCP, bearer("token-0"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "does not contain a token"),
        ("# nothing\n", "does not contain a token"),
        ("engine-a: hunter2\n", "line 1: expected `name: sha256`"),
        ("hunter2\n", "line 1: expected"),
        (line("engine a", "t"), "line 1: expected"),
        (line("x" * 64, "t"), "line 1: expected"),
        (line("unix", "t"), "the name unix is taken"),
        (line("a", "t") + line("b", "t"), "line 2: this token belongs to two clients"),
        ("".join(line(f"c{n}", str(n)) for n in range(1001)), "contains 1001 tokens, at most 1000"),
        (b"\xff\xfe", "is not UTF-8"),
        (None, "cannot read .*: No such file"),
    ],
)
def test_a_token_file_that_cannot_be_used_is_named_and_not_quoted(tmp_path: Path, text: str | bytes | None, why: str) -> None:
    path = tmp_path / "tokens"
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(TokenFileError, match=why) as caught:
        Callers(path, CallerLimits(), Metrics())
    assert "hunter2" not in str(caught.value)


def test_a_revoked_client_loses_its_series_and_a_known_one_keeps_its_limits(tmp_path: Path) -> None:
    path, metrics = tmp_path / "tokens", Metrics()
    path.write_text(line("a", "one") + line("b", "two"))
    callers = Callers(path, CallerLimits(rate=1), metrics)
    a, b = (callers.enter(TCP, bearer(token)) for token in ("one", "two"))
    a.admit(1)
    path.write_text(line("b", "two") + line("b", "three"))
    assert callers.refresh()
    assert not callers.refresh()
    with pytest.raises(Unauthenticated):
        callers.enter(TCP, bearer("one"))
    assert callers.enter(TCP, bearer("three")) is b
    with pytest.raises(Overloaded):
        a.admit(1)
    named = {
        sample.labels["client"]
        for family in metrics.registry.collect()
        for sample in family.samples
        if "client" in sample.labels
    }
    assert named == {"b"}


def test_callers_are_bounded_and_those_with_a_large_message_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    from predictor_service.rpc import callers as module

    monkeypatch.setattr(module, "MAX_CALLERS", 3)
    metrics = Metrics()
    callers = Callers(None, CallerLimits(), metrics, certificates=True)

    def enter(name: str) -> Caller:
        return callers.enter(TCP, [], lambda: {"x509_common_name": [name.encode()]})

    with enter("first").carry(LARGE + 1):
        for n in range(10):
            enter(f"c{n}")
        named = {
            sample.labels["client"]
            for family in metrics.registry.collect()
            for sample in family.samples
            if "client" in sample.labels
        }
        assert named == {"first", "c8", "c9"}
