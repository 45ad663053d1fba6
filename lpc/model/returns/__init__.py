"""When conversations return, learnt from those that do; and what that is worth in a cache: seconds of credit."""

from typing import Final

MAX_CREDIT_S: Final = 14_400.0
"""Credits lie within [-MAX_CREDIT_S, MAX_CREDIT_S]; an engine takes a table with anything else for broken."""
