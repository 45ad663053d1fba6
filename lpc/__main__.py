"""`python -m lpc` is the `lpc` command."""

from lpc.cli import main

main()
