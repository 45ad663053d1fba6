"""Cache-Control of a request."""

import pytest

from response_cache.gateway.headers import Directives, directives_of


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ((), Directives()),
        (("no-cache",), Directives(lookup=False)),
        (("max-age=0",), Directives(lookup=False)),
        (("No-Store",), Directives(lookup=False, store=False)),
        (('Max-Age="60"',), Directives(lookup=False)),
        (("max-age=soon",), Directives(lookup=False)),
        (("x=y", "only-if-cached"), Directives(only_if_cached=True)),
        (("only-if-cached, no-store",), Directives(lookup=False, store=False, only_if_cached=True)),
        (("no-transform, x=y",), Directives()),
    ],
)
def test_directives_have_the_meaning_of_rfc_9111(said: tuple[str, ...], meant: Directives) -> None:
    assert directives_of([(b"Cache-Control", value.encode()) for value in said]) == meant


def test_pragma_counts_only_without_cache_control() -> None:
    pragma = (b"pragma", b"no-cache")
    assert not directives_of([pragma]).lookup
    assert directives_of([pragma, (b"cache-control", b"only-if-cached")]) == Directives(only_if_cached=True)
