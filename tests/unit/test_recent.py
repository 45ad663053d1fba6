"""A bounded table of blocks in small dictionaries."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from eviction_client.recent import ENTRIES_PER_PART, Recent


@given(st.integers(1, 9), st.lists(st.tuples(st.sampled_from(["put", "pop", "get"]), st.integers(0, 15), st.integers())))
def test_a_small_table_forgets_what_was_set_longest_ago(most: int, calls: list[tuple[str, int, int]]) -> None:
    table: Recent[int, int] = Recent(most)
    wanted: OrderedDict[int, int] = OrderedDict()
    for call, key, value in calls:
        if call == "put":
            table.put(key, value)
            wanted.pop(key, None)
            wanted[key] = value
            if len(wanted) > most:
                wanted.popitem(last=False)
        elif call == "pop":
            assert table.pop(key) == wanted.pop(key, None)
        else:
            assert table.get(key) == wanted.get(key)
        assert len(table) == len(wanted)


def test_a_large_table_consists_of_small_dictionaries_and_keeps_the_newest_entries() -> None:
    most = 100_000
    table: Recent[bytes, int] = Recent(most)
    keys = [number.to_bytes(32, "big") for number in range(3 * most)]
    for number, key in enumerate(keys):
        table.put(key, number)
        assert number % 10_000 or max(map(len, table.parts())) <= ENTRIES_PER_PART
    assert 0.97 * most <= len(table) <= most + ENTRIES_PER_PART
    assert all(table.get(key) is not None for key in keys[-most * 9 // 10 :])
    assert not any(table.get(key) is not None for key in keys[: -most * 11 // 10])
    table.clear()
    assert len(table) == 0
