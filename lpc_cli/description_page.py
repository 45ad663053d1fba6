"""The page of `lpc simulate --describe --html`: the figures of section 3 of KVCache Cache in the Wild (USENIX ATC 2025)."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from lpc_apps.simulator.amounts import about, percent, seconds, tokens
from lpc_apps.simulator.policies.workload_aware import TURNS
from lpc_apps.simulator.reuse_laws import law_at
from lpc_cli.charts import chart
from lpc_cli.html_file import write_html
from lpc_cli.simulation_tables import class_rows, kind_rows, summary_rows, user_rows

FEWEST_TURNS: Final = 10
"""Turns of which a share is shown."""
LAWS: Final = 8
"""Classes whose laws are drawn."""

Found = dict[str, Any]


def write_description(path: Path, found: Found, *, log: dict[str, Any] | None, command: str) -> None:
    """Write the page.

    Args:
        found: what `lpc_apps.simulator.describe.describe` returns.
        log: what was read of a log; None: there is none.
        command: the command that made the page.
    """
    charts = [each for each in charts_of(found) if each is not None]
    write_html(
        path,
        "description_page.html",
        name=found["trace"],
        log=log,
        requests=found["requests"],
        duration=seconds(found["duration_s"]),
        tables=[
            ("The log", ("", ""), [*summary_rows(found), *user_rows(found)]),
            ("Hits by kind of request", *kind_rows(found)),
        ],
        charts=charts,
        laws=[each for each in laws_of(found["classes_by_turn"]) if each is not None],
        classes=class_rows(found["classes_by_turn"]),
        command=command,
    )


def charts_of(found: Found) -> Iterator[dict[str, Any] | None]:
    """Yield the charts in their order on the page; None for one whose figures the log lacks."""
    types, times = found["types"], found["over_time"]
    width = seconds(found["interval_s"])
    clock = "hour of the day, UTC" if found["of_day"] else f"{width} from, UTC or since the log's start"
    every, tokens_of = found["requests"], sum(kind["tokens"] for kind in found["kinds"].values())
    hits = sum(kind["hits"] for kind in found["kinds"].values())
    yield chart(
        "Requests, prompt tokens and hits by kind of request",
        {
            name: [(kind, of[key] / whole if whole else None) for kind, of in found["kinds"].items()]
            for name, key, whole in (
                ("requests", "requests", every),
                ("prompt tokens", "tokens", tokens_of),
                ("hits", "hits", hits),
            )
        },
        x="kind of request",
        show_y=about,
        bars=True,
        note="single: the only turn of its conversation in the log; first: the first of several; later: turn 2 and beyond.",
    )
    yield chart(
        "Multi-turn conversations by type",
        {
            "conversations with several turns": [(name, of["multi_turn"]) for name, of in types.items()],
            "requests after a first turn": [(name, of["later"]) for name, of in types.items()],
        },
        x="type",
        show_y=about,
        bars=True,
        note="A conversation has the type of its first request.",
    )
    lengths = found["conversations_by_turns"]
    total, below, until = sum(lengths.values()), 0, []
    for turns, count in lengths.items():
        below += count
        until.append((int(turns), below / total))
    yield chart(
        "Conversations with at most so many turns",
        {"conversations": until},
        x="turns",
        show_y=about,
        logarithmic=True,
        most=1.0,
    )
    yield chart(
        "Most reused blocks, busiest users",
        {
            name: [(0.0, 0.0), *((float(share), part) for share, part in found["skew"][key].items())]
            for name, key in (("reuses, by blocks", "blocks"), ("turns, by users", "turns"), ("hits, by users", "hits"))
            if key in found["skew"]
        },
        x="share of blocks or users, the highest first",
        show_x=about,
        show_y=about,
        most=1.0,
    )
    yield chart(
        "Hits over the day",
        {
            "hit rate": [(at, of["hits"] / of["tokens"] if of["tokens"] else None) for at, of in times.items()],
            "hits that are later turns'": [(at, of["later"] / of["hits"] if of["hits"] else None) for at, of in times.items()],
        },
        x=clock,
        show_y=percent,
        most=1.0,
        note="An infinite cache is empty when the log begins.",
    )
    yield chart(
        "Requests over the day",
        {"requests": [(at, of["requests"]) for at, of in times.items()]},
        x=clock,
        show_y=lambda count: f"{count:,.0f}",
    )
    lives = [(at, of["life_p50_s"]) for at, of in times.items()]
    yield chart(
        "Life of blocks over the day, median",
        {"from the first to the last use": lives},
        x=clock,
        show_y=_time,
        unit=next((unit for unit in (3600.0, 60.0) if any(life and life > 2 * unit for _, life in lives)), 1.0),
        note="Blocks that were used again, by the time of their first use. Lives are cut at the end of the log.",
    )
    for title, key, note in (
        ("Life of blocks by type", "life_within", "Blocks that were used again, by the type of the last use."),
        ("Time to reuse by type", "reuse_within", "Blocks that were used again, by the type of the use before."),
    ):
        yield chart(
            title,
            {
                f"{name} ({tokens(of['blocks'])} blocks)": [(int(at), share) for at, share in of["within_s"].items()]
                for name, of in found[key].items()
                if of["blocks"]
            },
            x="within",
            show_x=_time,
            show_y=about,
            logarithmic=True,
            most=1.0,
            note=note,
        )
    by_turn = found["next_turn"]["by_turn"]
    yield chart(
        "Turns with a next turn, by turn",
        {"all types": [(int(turn), share) for turn, share in by_turn.items()]},
        x="turn",
        show_y=percent,
        most=1.0,
    )
    yield chart(
        "Turns with a next turn, by type, over the day",
        {
            name: [
                (at, of["next_turn"][at]["share"] if at in of["next_turn"] and _enough(of["next_turn"][at]) else None)
                for at in times
            ]
            for name, of in types.items()
            if any(map(_enough, of["next_turn"].values()))
        },
        x=clock,
        show_y=percent,
        most=1.0,
        note=f"With at least {FEWEST_TURNS} turns. Turns at the end of the log, which may go on after it, do not count.",
    )
    yield chart(
        "Hits by place in the prompt",
        {"blocks that hit": [(place, share) for place, share in enumerate(found["hits_by_position"], 1)]},
        x="tenth of the prompt",
        show_y=percent,
        most=1.0,
    )
    offsets = found["offsets"]
    yield chart(
        "Reuse by offset in the prompt",
        {"uses that are reuses": [(_from(offset), of["reused"]) for offset, of in offsets.items()]},
        x="offset, tokens from",
        show_y=percent,
        bars=True,
        most=1.0,
    )
    yield chart(
        "Stride by offset in the prompt",
        {
            name: [(_from(offset), of[key]) for offset, of in offsets.items()]
            for name, key in (("p50", "stride_p50_tokens"), ("p90", "stride_p90_tokens"))
        },
        x="offset, tokens from",
        show_y=tokens,
        bars=True,
        note="Stride: tokens that other prompts read between two uses of a block.",
    )
    lru = found["lru"]
    reach = "; ".join(
        f"{about(float(part))} of the hits: {tokens(size)}" for part, size in lru["reach"].items() if size is not None
    )
    yield chart(
        "The size that reaches the ideal",
        {
            "LRU": [(size["tokens"], size["hit_rate"]) for size in lru["sizes"]],
            "infinite cache": [(size["tokens"], lru["ideal_hit_rate"]) for size in lru["sizes"]],
        },
        x="cache, tokens",
        show_x=tokens,
        show_y=percent,
        logarithmic=True,
        dashed=["infinite cache"],
        note=f"Smallest of these sizes with that share of an infinite cache's hits: {reach}." if reach else "",
    )


def laws_of(classes: Sequence[Found]) -> Iterator[dict[str, Any] | None]:
    """Yield a chart of the law and the data for each of the classes with most reuses."""
    drawn = sorted((of for of in classes if of["law"] is not None and of["data"]), key=lambda of: -of["reused"])[:LAWS]
    for of in drawn:
        law = of["law"]
        yield chart(
            f"{of['type']}, turn {turn_of(of)}",
            {
                "law": [(age, law_at(law, age)) for age, _ in of["data"]],
                "data": of["data"],
            },
            x="used again within",
            show_x=_time,
            show_y=percent,
            logarithmic=True,
            dashed=["law"],
            note=f"{percent(law['q'])} are used again, on average after {_time(law['tau_s'])}. "
            f"Law and data differ by at most {100 * law['apart']:.1f} points.",
        )


def turn_of(of: Found) -> str:
    """Return the turn of a class in words."""
    return f"{of['turn']} and later" if of["turn"] == TURNS else str(of["turn"])


def _enough(counted: Found) -> bool:
    return bool(counted["turns"] >= FEWEST_TURNS)


def _from(offset: str) -> str:
    return tokens(int(offset))


def _time(value: float) -> str:
    return "0" if value == 0 else seconds(value)
