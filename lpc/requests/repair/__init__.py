"""Repair of prompts: named rules that keep the beginning of a conversation's prompts the same, so that a prefix cache hits.

A repair changes what the model reads, so each rule is named and states its safety. `lpc why LOG --repair` replays a log with
them.
"""

from lpc.requests.repair.reading import Read
from lpc.requests.repair.repairing import RULES, Repaired, repair, repair_bytes, repaired, rules_of, written
from lpc.requests.repair.rule import SAFETY, Change, Rule

__all__ = ["RULES", "SAFETY", "Change", "Read", "Repaired", "Rule", "repair", "repair_bytes", "repaired", "rules_of", "written"]
