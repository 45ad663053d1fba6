import pytest

from eviction_client.stores.namespace import Namespace


def test_the_digest_is_the_same_in_every_process() -> None:
    """A change of this value separates engines of the old release from those of the new one: raise the encoding for it."""
    assert Namespace("sha256_cbor", "0", 16, "a-model").digest == "738165dc52c3dd88c178990e81def39e"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Namespace("ab", "0", 16, "m"), Namespace("a", "b0", 16, "m")),
        (Namespace("a", "0", 16, "m"), Namespace("a", "0", 16, "m", 1)),
        (Namespace("a", "0", 16, "m", 2), Namespace("a", "0", 16, "m", 1)),
        (Namespace('a","block', "0", 16, "m"), Namespace("a", "0", 16, 'm","block')),
    ],
)
def test_different_namespaces_have_different_digests(one: Namespace, other: Namespace) -> None:
    assert one.digest != other.digest
