"""What an engine's own rendering of a log hits in an infinite prefix cache, to compare with what `lpc why` says of the log."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from lpc.requests.families import HARMONY_WITH_TOOLS_CHARS
from lpc_cli.why import explained
from tests.unit.why.test_engines import LOGS, RECORDS
from tests.unit.why.traffic import write

Body = dict[str, Any]
CHATML: Final = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS: Final = "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
INSTRUCTIONS: Final = (
    "{% if messages[0].role in ('system', 'developer') %}<|im_start|>{{ messages[0].role }}\n{{ messages[0].content }}"
)
PARTS: Final = CHATML.replace(
    "{{ m.content }}",
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}",
)
TEMPLATES: Final[dict[str, str]] = {
    "tools first": TOOLS + CHATML,
    "parts, tools first": TOOLS + PARTS,
    "instructions first": (
        INSTRUCTIONS + "\n" + TOOLS + "<|im_end|>\n{% set messages = messages[1:] %}{% else %}" + TOOLS + "{% endif %}" + CHATML
    ),
}
TEMPLATES["gpt-oss"] = "x" * HARMONY_WITH_TOOLS_CHARS + TEMPLATES["instructions first"]
"""By where the tools are. That of `m` is not known, and `lpc why` takes tools first."""
COMPARED: Final = [name for name in LOGS if name != "developer, DeepSeek V3.2"]
"""DeepSeek V3.2 writes a page about its tools that no log has."""
BLOCK_CHARS: Final = 64


def template_of(model: str) -> str:
    """Return the name of the template of a model in `LOGS`."""
    name = model.lower()
    if "gpt-oss" in name:
        return "gpt-oss"
    if "qwen3.6" in name:
        return "parts, tools first"
    return "instructions first" if any(part in name for part in ("qwen3-", "deepseek")) else "tools first"


def rate(prompts: Sequence[tuple[str | list[int], str | list[int]]], block: int) -> float:
    """Return the hit rate of an infinite cache in whole blocks. ``prompts``: of each request, and with its reply."""
    seen: set[int] = set()
    hit = total = 0
    for prompt, with_reply in prompts:
        known = 0
        for end, chained in _blocks(prompt, block):
            if chained not in seen:
                break
            known = end
        hit, total = hit + known, total + len(prompt)
        seen.update(chained for _, chained in _blocks(with_reply, block))
    return hit / total


def _blocks(prompt: str | list[int], block: int) -> list[tuple[int, int]]:
    found, before = [], 0
    for end in range(block, len(prompt) + 1, block):
        before = hash((before, tuple(prompt[end - block : end])))
        found.append((end, before))
    return found


def rates(name: str, engine: Any, render: Callable[[Body, str], list[int] | str], folder: Path) -> tuple[float, float]:
    """Return the hit rates of a log of `LOGS`: by `lpc why`, and by what an engine renders."""
    change, model, *_ = LOGS[name]
    records = [{**change(record, number), "model": model} for number, record in enumerate(RECORDS)]
    log = folder / "log.jsonl"
    write(log, records)
    said = explained([log], None, show_text=False, engine=engine)["hit_rate"]
    prompts = []
    chars = 0
    for record in records:
        body = {name: record[name] for name in ("model", "messages", "tools")}
        # SGLang takes a reply at the end for one to go on with.
        end = [{"role": "user", "content": "."}] if engine == "sglang" else []
        replied = {**body, "messages": [*body["messages"], record["response"], *end], "add_generation_prompt": False}
        prompts.append((render(body, model), render(replied, model)))
        chars += len(str(body["messages"])) + len(str(body["tools"]))
    tokens = sum(len(prompt) for prompt, _ in prompts)
    return said, rate(prompts, max(1, round(BLOCK_CHARS * tokens / chars)))
