"""`python -m lpc` is the `lpc` command."""

from lpc.commands.cli import main

main()
