"""How long a client asks that its prompt be kept, in the protocols that clients and routers speak.

- Anthropic's `cache_control`, of the body or of a block in tools, system, messages: `{"type": "ephemeral", "ttl": "1h"}`;
- NVIDIA Dynamo's `nvext.cache_control`, the same object, whose `ttl` may also be `90s` or `30m` (ai-dynamo/dynamo#6213);
- OpenAI's `prompt_cache_options.ttl`, and `prompt_cache_retention`: `24h`, or `in_memory`, which asks for nothing.

Of several the longest counts, and for the whole prompt: a plug-in knows no breakpoints. What the engine does with it is the
operator's to say (``LPC_HINTS_SHARE``).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

ARGUMENTS: Final = {"vllm": "vllm_xargs", "sglang": "custom_params"}
"""The field of a body in which an engine takes arguments for plug-ins."""
DEFAULT_TTL_S: Final = 300.0
"""Of Anthropic's `cache_control`."""
_TTL: Final = re.compile(r"(\d{1,7})([smhd])", re.ASCII)
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def retain_seconds(said: Mapping[str, Any]) -> float:
    """Return for how many seconds a body asks to keep its prompt; 0: it does not ask. What cannot be read asks for nothing."""
    asked = [_control(holder.get("cache_control")) for holder in _holders(said)]
    options = said.get("prompt_cache_options")
    asked.append(_ttl(options.get("ttl")) if isinstance(options, dict) else 0.0)
    asked.append(_ttl(said.get("prompt_cache_retention")))
    return max(asked)


def _holders(said: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Yield the objects of a body that may have a `cache_control`."""
    yield said
    if isinstance(said.get("nvext"), dict):
        yield said["nvext"]
    for name in ("tools", "system", "messages"):
        for item in _objects(said.get(name)):
            yield item
            yield from _objects(item.get("content"))


def _objects(value: object) -> Iterable[Mapping[str, Any]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else ()


def _control(control: object) -> float:
    if not isinstance(control, dict) or control.get("type") != "ephemeral":
        return 0.0
    return _ttl(control["ttl"]) if "ttl" in control else DEFAULT_TTL_S


def _ttl(value: object) -> float:
    found = _TTL.fullmatch(value) if isinstance(value, str) else None
    return int(found[1]) * _SECONDS[found[2]] if found else 0.0
