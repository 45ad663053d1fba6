"""What an operator allows in a scope: which tiers serve, how long an answer lives, which wrong answers are bearable."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

Mode: TypeAlias = Literal["off", "shadow", "serve"]
"""Of the semantic tier: not looked at; looked at and labelled, the engine answers; served where evidence allows."""
JudgeName: TypeAlias = Literal["text", "embedding", "model"]
"""Who says whether two answers say the same, where no caller does: see `lpc.responses.semantic.same_answer`."""
KindName: TypeAlias = Literal["default", "faq", "technical_qa", "code", "creative"]

HOUR: Final = 3600.0


LIFE_S: Final[Mapping[KindName, float]] = {
    "default": 4 * HOUR,
    "faq": 8 * HOUR,
    "technical_qa": 24 * HOUR,
    "code": 48 * HOUR,
    "creative": HOUR,  # nothing is kept: the same again is not what is wanted
}
"""An answer's life by kind, seconds."""


class ScopeSettings(BaseModel):
    """Of one scope. What is not set comes from its kind."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: KindName = "default"
    mode: Mode = "off"
    ttl_s: Annotated[float, Field(gt=0, le=366 * 24 * HOUR, allow_inf_nan=False)] | None = None
    any_temperature: bool = False
    bound: Annotated[float, Field(gt=0, lt=1)] = 0.05
    level: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    evidence: Path | None = None
    max_entries: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000
    max_mib: Annotated[int, Field(ge=1, le=2**20)] = 1024
    tenant_entries: Annotated[int, Field(ge=1, le=10_000_000)] = 25_000
    tenant_mib: Annotated[int, Field(ge=1, le=2**20)] = 256
    judge: JudgeName = "text"
    judge_url: Annotated[str, Field(pattern=r"^https?://.+")] | None = None
    judge_model: str = ""
    judge_key_file: Path | None = None
    judge_timeout_s: Annotated[float, Field(gt=0, le=600, allow_inf_nan=False)] = 30.0

    @model_validator(mode="after")
    def _judge_is_whole(self) -> Self:
        if self.judge == "model" and not (self.judge_url and self.judge_model):
            raise ValueError('judge "model" needs judge_url (OpenAI-compatible, ends with /v1) and judge_model, its name there')
        if self.judge != "model" and (self.judge_url or self.judge_model or self.judge_key_file):
            raise ValueError('judge_url, judge_model and judge_key_file are of judge "model": set it, or leave them out')
        return self

    @property
    def keeps(self) -> bool:
        """Whether any answer is served or stored."""
        return self.kind != "creative"

    @property
    def semantic(self) -> Mode:
        """What the semantic tier does. Code and creative writing have none."""
        return "off" if self.kind in ("code", "creative") else self.mode

    @property
    def life_s(self) -> float:
        """Seconds that an answer may be served."""
        return LIFE_S[self.kind] if self.ttl_s is None else self.ttl_s


class Scopes:
    """All scopes of a sidecar. ``default`` among the settings is of every scope that is not named."""

    def __init__(self, settings: Mapping[str, ScopeSettings]) -> None:
        self._settings = settings
        self._default = settings.get("default", ScopeSettings())

    def of(self, name: str) -> ScopeSettings:
        """Return the settings of a scope by the name that a caller declares."""
        return self._settings.get(name, self._default)

    def label(self, name: str) -> str:
        """Return what a scope is called in metrics: callers may declare any number of names."""
        return name if name in self._settings else "default"

    @property
    def labels(self) -> list[str]:
        """All that :meth:`label` can return."""
        return sorted({*self._settings, "default"})
