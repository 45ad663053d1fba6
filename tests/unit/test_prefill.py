"""The cached prefix of a prompt."""

from hypothesis import given
from hypothesis import strategies as st

from eviction_client.policy.prefill import cached_prefix


@given(st.integers(0, 5000), st.data())
def test_the_cached_prefix_is_found_from_any_earlier_answer(length: int, data: st.DataObject) -> None:
    held = data.draw(st.integers(0, length))
    known = data.draw(st.integers(0, length + 10))
    looks = []

    def cached(place: int) -> bool:
        assert 0 <= place < length
        looks.append(place)
        return place < held

    assert cached_prefix(cached, length, known) == held
    assert len(looks) <= 2 * abs(held - min(known, length)).bit_length() + 2


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 60))
def test_in_a_chain_with_holes_the_answer_is_an_end_of_what_is_cached(chain: list[bool], known: int) -> None:
    found = cached_prefix(chain.__getitem__, len(chain), known)
    assert found == 0 or chain[found - 1]
    assert found == len(chain) or not chain[found]
