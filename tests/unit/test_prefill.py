"""The cached prefix of a prompt."""

from hypothesis import given
from hypothesis import strategies as st

from eviction_client.schedule.prefill import LATELY, START_SPEED, PrefillSpeed, RepeatedPrefill, cached_prefix


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


def test_the_speed_becomes_the_engines_own() -> None:
    speed = PrefillSpeed()
    assert speed.tokens_per_s == START_SPEED
    for _ in range(100):
        speed.note(2000, 1.0)
    assert abs(speed.tokens_per_s - 2000) < 100
    before = speed.tokens_per_s
    for seconds in (0.0, -1.0, 1e9, float("nan")):
        speed.note(2000, seconds)
    speed.note(0, 1.0)
    assert speed.tokens_per_s == before


def test_steps_that_hold_prompts_back_count_in_the_speed() -> None:
    """One step of four computes 2,000 tokens in a second, and decoding takes a second in each of the others."""
    speed, unaware = PrefillSpeed(every=4), PrefillSpeed()
    for _ in range(100):
        for tokens in (2000, 0, 0, 0):
            speed.note(tokens, 1.0)
            unaware.note(tokens, 1.0)
    assert abs(speed.tokens_per_s - 500) < 50
    assert abs(unaware.tokens_per_s - 2000) < 100


def test_other_steps_without_a_prompt_do_not_count() -> None:
    speed = PrefillSpeed(every=2)
    for _ in range(100):
        for _ in range(50):  # the batch is full
            speed.note(0, 1.0)
        speed.note(2000, 1.0)
    assert abs(speed.tokens_per_s - 1000) < 50
    paused = PrefillSpeed(every=2)
    for _ in range(100):
        paused.note(0, 1.0)
        paused.paused()
        paused.note(2000, 1.0)
    assert abs(paused.tokens_per_s - 2000) < 100


def test_the_repeated_share_follows_the_traffic_of_the_last_quarter_of_the_cache() -> None:
    repeated = RepeatedPrefill(100_000)
    assert repeated.share == 0.0
    for _ in range(10):
        repeated.note(int(LATELY * 100_000), 20_000)
    assert abs(repeated.share - 0.8) < 0.01
    repeated.note(1, 0)
    assert abs(repeated.share - 0.8) < 0.01, "a short prompt weighs little"
    for odd in ((0, 100), (-5, 3)):
        repeated.note(*odd)
    repeated.note(10_000_000, 20_000_000)
    assert 0.99 < repeated.share <= 1.0
