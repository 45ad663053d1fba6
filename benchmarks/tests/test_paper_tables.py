"""The paper's tables: what a head reads, its split and baseline, and the page's blocks."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.paper import page
from benchmarks.paper.data import Data, read
from benchmarks.paper.hits import held_out, runs_of
from benchmarks.paper.tables import (
    PROMPTS,
    TEN,
    WITH_REPLIES,
    Input,
    by_turn_count,
    examples,
    pooled,
    unified,
    windows,
    with_split,
)
from lpc.errors import UsageError
from lpc.model.conversation import Message
from lpc_apps.logs.datasets.conversation import Conversation, conversation_key, split_of
from lpc_apps.simulator.summary import MEANS
from lpc_apps.training.embedding import Embedded


def conversation(*contents: str, ended: bool = True, name: str = "a") -> Conversation:
    return Conversation(name, tuple(Message(("user", "assistant")[i % 2], text) for i, text in enumerate(contents)), ended)


def vectors(*texts: str) -> dict[str, tuple[Any, int]]:
    """Each text has a direction of its own, and as many tokens as characters."""
    return {text: (np.eye(len(texts), dtype=np.float32)[i], len(text)) for i, text in enumerate(texts)}


def test_a_window_has_the_last_prompts_and_with_replies_those_between_them() -> None:
    said = conversation("p1", "r1", "p2", "r2", "p3", "r3")
    assert list(windows(said, Input("", window=2))) == [["p1"], ["p1", "p2"], ["p2", "p3"]]
    assert list(windows(said, Input("", window=2, replies=True))) == [["p1"], ["p1", "r1", "p2"], ["p2", "r2", "p3"]]


def test_blank_prompts_and_a_reply_before_the_first_prompt_are_not_read() -> None:
    messages = (Message("assistant", "hello"), Message("user", "  "), Message("user", "p1"), Message("assistant", ""))
    assert list(windows(Conversation("a", messages), WITH_REPLIES)) == [["p1"]]


def test_texts_are_weighted_by_the_tokens_that_each_has_in_the_budget() -> None:
    long, short = "x" * 1000, "y" * 64
    found = pooled([long, short], vectors(long, short))
    assert found == pytest.approx(np.array([256, 64]) / np.hypot(256, 64))


def test_only_the_last_turn_ends_and_one_whose_end_is_unknown_is_no_example() -> None:
    data = Data("d", [conversation("a", "r", "b"), conversation("a", "r", "b", ended=False)], 2, replies=True)
    found = examples(data, PROMPTS, vectors("a", "b"))
    assert found.continues.tolist() == [True, False, True]
    assert found.columns["turn_count"].tolist() == [1, 2, 1]


def one_set(rows: int) -> tuple[Any, tuple[str, ...]]:
    return np.zeros(rows, np.int64), ("d",)


def of_turns(turns: list[int], continues: list[bool], split: list[str]) -> Embedded:
    keys = np.array([f"{i:032x}" for i in range(len(turns))])
    counts = {"turn_count": np.array(turns, np.float32)}
    return Embedded(
        np.zeros((len(turns), 2), np.float32), counts, np.array(continues), np.array(split), keys, {}, *one_set(len(turns))
    )


def test_the_baseline_predicts_the_share_of_training_turns_of_the_same_count() -> None:
    seen = [(1, False)] * 9 + [(1, True)] + [(2, True)] * 10
    split = ["train"] * 20 + ["validation"] * 20 + ["evaluation"] * 2
    turns, continues = zip(*seen, *seen, (1, False), (2, True), strict=True)
    probability, threshold = by_turn_count(of_turns(list(turns), list(continues), split))
    assert probability == pytest.approx([(1 + 0.55) / 11, (10 + 0.55) / 11])
    assert probability[0] < threshold <= probability[1]


def test_seed_0_has_the_split_of_training_and_other_seeds_have_others() -> None:
    names = [conversation_key(f"prompt {i}") for i in range(4096)]
    data = Embedded(
        np.zeros((8192, 2)), {}, np.arange(8192) % 2 > 0, np.full(8192, ""), np.array(names + names), {}, *one_set(8192)
    )
    first, other = with_split(data, 0).split.tolist(), with_split(data, 1).split.tolist()
    assert first == [split_of(key) for key in data.conversation]
    assert first != other
    assert other[:4096] == other[4096:]


def test_a_head_for_all_data_is_trained_with_and_without_offsets() -> None:
    parts = [
        of_turns([1, 2] * 200, [bool(i % share) for i in range(400)], ["train"] * 200 + ["validation"] * 200)
        for share in (2, 3)
    ]
    heads = [unified(parts, 0, offsets=offsets) for offsets in (False, True)]
    assert not torch.equal(*(head.output.weight for head in heads))


def test_the_held_out_half_is_that_of_training() -> None:
    data = Data("d", [conversation(f"prompt {i}") for i in range(200)], 200, replies=False)
    assert 60 < len(held_out(data)) < 140


def test_a_source_is_sharegpt_or_a_format_and_a_file() -> None:
    for wrong in ("conversations", "sharegpt.json", "nothing:file"):
        with pytest.raises(UsageError, match="is no data: give sharegpt or sharegpt-segments, or FORMAT:FILE"):
            read(wrong, None)


def test_a_sample_is_drawn_and_filler_is_not_read_as_replies(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(
        "\n".join(
            f'{{"messages": [{{"role": "user", "content": "p{i}"}}, {{"role": "assistant", "content": "x x x"}}]}}'
            for i in range(9)
        )
    )
    data = read(f"conversations:{path}", 4)
    assert (data.name, len(data.conversations), data.of, data.replies) == ("chats", 4, 9, False)
    assert len(set(data.texts(replies=False))) == 4
    assert len(read(f"conversations:{path}", 10).conversations) == 9


SCORES: dict[str, Any] = {"f1_macro": 0.5, "auc": 0.6, "examples": 10, "continue_share": 0.4}


def hit(policy: str, size: int, rate: float, seed: int = 0, think_time: float = 100.0) -> dict[str, Any]:
    shares = {"sources": dict.fromkeys(("shared", "own", "evicted"), 0), "unused": {"unused": 0}}
    place = {"workload": "d", "policy": policy, "capacity_tokens": size, "capacity_fraction": 0.1, "seed": seed}
    setting = {"think_time_s": think_time, "inverted": False, "by_fraction": False, "closed_loop": False, "queue": ""}
    counts = {
        "prefill_tokens_s": 20_000.0,
        "hit_rate": rate,
        "request_hit_rate": rate / 2,
        "requests": 1,
        "refused": 0,
        "prompt_tokens": 1,
    }
    return dict.fromkeys(MEANS, 0.0) | shares | place | setting | counts


def test_the_tables_are_written_between_their_markers_and_nothing_else_changes(tmp_path: Path) -> None:
    path = tmp_path / "paper.md"
    scored = [
        {**SCORES, "seed": seed, "data": "d", "predictor": name, "mcc": mcc + seed / 10}
        for seed in (0, 1)
        for name, mcc in (("turn count", 0.1), (PROMPTS.name, 0.2), (TEN.name, 0.3))
    ]
    rates = {"lru": (0.2, 0.4), "lpc": (0.4, 0.5), "plugin": (0.1, 0.4), "plugin-sidecar": (0.4, 0.5), "oracle": (0.6, 0.6)}
    rows = [
        hit(policy, size, rate) for policy, both in rates.items() for size, rate in zip((40_000, 80_000), both, strict=True)
    ]
    data = Data("d", [conversation("hi")], 3, replies=False)
    names = page.blocks([data], scored, rows)
    path.write_text("Before.\n" + "".join(f"<!-- {name} -->\nold\n<!-- end of {name} -->\n" for name in names) + "After.\n")
    page.write(path, [data], scored, rows)
    text = path.read_text()
    assert text.startswith("Before.\n")
    assert text.endswith("After.\n")
    assert "old" not in text
    assert "0.250 (0.200 to 0.300)" in text
    cells = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:4]]
        for line in text.splitlines()
        if line.startswith("| d, ")
    }
    assert cells["d, `lpc`"] == ["40.0 (40.0 to 40.0)", "50.0 (50.0 to 50.0)"]
    assert cells["d, `lpc`: gap to the oracle closed"] == ["50", "50"]
    # At 40K `lpc` hits what LRU hits at 80K; `plugin` hits it at 80K, and less at 40K.
    assert cells["d, `lpc`: cache saved at equal hits"] == ["-", "50"]
    assert cells["d, `plugin`: cache saved at equal hits"] == ["-", "0"]
    assert "| here, d, `lpc` | 25 to 100 |" in re.sub(" +", " ", text)
    assert "| Chatbot Arena in the paper, `lpc` | 15 to 30 |" in re.sub(" +", " ", text)
    path.write_text("A page without markers.\n")
    with pytest.raises(UsageError, match="has no lines"):
        page.write(path, [data], scored, rows)


def test_every_policy_runs_at_every_size_and_think_time(tmp_path: Path) -> None:
    runs = runs_of([tmp_path], (60_000, 100_000, 160_000), (0, 1))
    assert len(runs) == len({repr(run) for run in runs}) == 2 * 5 * (3 + 2)


def test_a_cache_that_is_smaller_by_the_predictors_memory_hits_what_lies_between_the_sizes() -> None:
    size, rates = 20_000, {"lru": (0.1, 0.3), "lpc": (0.2, 0.4)}
    rows = [hit(policy, at * size, rate) for policy, both in rates.items() for at, rate in zip((1, 2), both, strict=True)]
    cells = page.blocks([], [], rows)["figure 8"].splitlines()[2].split("|")[2:6]
    lost = [20 * times * page.PREDICTOR_TOKENS / size for times in (0, 1, 2, 4)]
    assert [float(cell) for cell in cells] == pytest.approx([10 - one for one in lost], abs=0.06)
