"""What one check of `lpc doctor` found."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """What one check found. ``advice``: what to do; empty when all is well."""

    check: str
    status: Status
    found: str
    advice: str = ""
