import pytest

from eviction_client.stores.namespace import Namespace


def test_the_digest_is_the_same_in_every_process() -> None:
    """A change of this value separates engines of the old release from those of the new one: raise the encoding for it."""
    assert Namespace("sha256_cbor", "0", 16, "a-model").digest == "40f0c24769f9e252dc114be415856f78"


def test_equal_namespaces_have_equal_digests_whatever_the_type_of_tau() -> None:
    assert Namespace("a", "0", 16, "m", tau=100).digest == Namespace("a", "0", 16, "m", tau=100.0).digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Namespace("a", "0", 16, "m", lora=None), Namespace("a", "0", 16, "m", lora="")),
        (Namespace("a", "0", 16, "m", lora="x"), Namespace("a", "0", 16, "m", salt="x")),
        (Namespace("ab", "0", 16, "m"), Namespace("a", "b0", 16, "m")),
        (Namespace('a","block', "0", 16, "m"), Namespace("a", "0", 16, 'm","block')),
    ],
)
def test_different_namespaces_have_different_digests(one: Namespace, other: Namespace) -> None:
    assert one.digest != other.digest


@pytest.mark.parametrize("wrong", [{"block_size": 0}, {"tau": 0.0}, {"tau": float("nan")}, {"tau": float("inf")}])
def test_values_without_meaning_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=r"must be (a )?positive"):
        Namespace(**{"hash_algorithm": "a", "hash_seed": "0", "block_size": 16, "model": "m", **wrong})
