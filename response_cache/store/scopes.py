"""Settings of scopes: which tiers serve, how long an answer lives, which share of wrong answers is allowed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from response_cache.semantic.evidence import Tier

Mode: TypeAlias = Literal["off", "shadow", "serve"]
"""Mode of the semantic tier: no lookup; look up and label, but let the engine answer; serve if evidence allows it."""
JudgeName: TypeAlias = Literal["text", "embedding"]
"""Judge of whether two answers are the same, if no caller reports it: see `response_cache.semantic.same_answer`."""
Disclosure: TypeAlias = Literal["digest", "text"]
"""How a question is shown: by a digest under the operator's key, or by its text."""
KindName: TypeAlias = Literal["default", "faq", "technical_qa", "code", "creative"]

HOUR: Final = 3600.0

LIFE_S: Final[Mapping[KindName, float]] = {
    "default": 4 * HOUR,
    "faq": 8 * HOUR,
    "technical_qa": 24 * HOUR,
    "code": 48 * HOUR,
    "creative": HOUR,  # not used: nothing is cached, because users want different answers
}
"""Default life of an answer by kind, in seconds."""
LEAST_SIMILARITY: Final = 0.9
"""Lowest similarity that an operator may set. Of unrelated questions to e5-small one in a hundred lies above 0.92."""
Seconds: TypeAlias = Annotated[float, Field(gt=0, le=366 * 24 * HOUR, allow_inf_nan=False)]


class ScopeSettings(BaseModel):
    """Settings of one scope. The kind sets the defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: KindName = "default"
    mode: Mode = "off"
    normalised: Mode | None = None
    ttl_s: Seconds | None = None
    semantic_ttl_s: Seconds | None = None
    time_sensitive: bool = True
    time_sensitive_ttl_s: Seconds = HOUR
    warm_up: bool = False
    any_temperature: bool = False
    bound: Annotated[float, Field(gt=0, lt=1)] = 0.05
    level: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    evidence: Path | None = None
    max_entries: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000
    max_mib: Annotated[int, Field(ge=1, le=2**20)] = 1024
    tenant_entries: Annotated[int, Field(ge=1, le=10_000_000)] = 25_000
    tenant_mib: Annotated[int, Field(ge=1, le=2**20)] = 256
    judge: JudgeName = "text"
    similarity: Annotated[float, Field(ge=LEAST_SIMILARITY, le=1)] | None = None
    question: Disclosure = "digest"
    pairs: Literal["off", "digest", "text"] = "off"

    @model_validator(mode="after")
    def _semantic_hits_end_first(self) -> Self:
        if self.semantic_ttl_s is not None and self.semantic_ttl_s > self.life_s:
            raise ValueError(f"semantic_ttl_s must be at most ttl_s ({self.life_s:g}): an answer ends for both tiers then")
        return self

    @model_validator(mode="after")
    def _similarity_applies(self) -> Self:
        if self.similarity is not None and self.semantic == "off":
            raise ValueError(
                "similarity needs the semantic tier: set mode to serve or shadow, and a kind other than code and creative"
            )
        return self

    @property
    def keeps(self) -> bool:
        """Whether the scope caches answers."""
        return self.kind != "creative"

    @property
    def semantic(self) -> Mode:
        """Mode of the semantic tier, which is off for code and creative writing."""
        return "off" if self.kind in ("code", "creative") else self.mode

    def mode_of(self, tier: Tier) -> Mode:
        """Return a tier's mode. The normalised tier has that of `mode` unless it has its own, also for code."""
        if tier == "semantic":
            return self.semantic
        return "off" if not self.keeps else self.normalised or self.mode

    @property
    def learns(self) -> bool:
        """Whether a tier looks for answers to other questions."""
        return any(self.mode_of(tier) != "off" for tier in get_args(Tier))

    @property
    def life_s(self) -> float:
        """Life of an answer in seconds."""
        return LIFE_S[self.kind] if self.ttl_s is None else self.ttl_s

    @property
    def semantic_life_s(self) -> float:
        """Seconds for which an answer may serve other questions."""
        return self.life_s if self.semantic_ttl_s is None else self.semantic_ttl_s


class Scopes:
    """All scopes of a sidecar. The settings of ``default`` apply to every scope without own settings."""

    def __init__(self, settings: Mapping[str, ScopeSettings]) -> None:
        self._settings = settings
        self._default = settings.get("default", ScopeSettings())

    def of(self, name: str) -> ScopeSettings:
        """Return the settings of a scope by its name in a request."""
        return self._settings.get(name, self._default)

    def label(self, name: str) -> str:
        """Return a scope's label in metrics: its name if it has own settings, since callers may send any number of names."""
        return name if name in self._settings else "default"

    @property
    def labels(self) -> list[str]:
        """All labels that :meth:`label` can return."""
        return sorted({*self._settings, "default"})
