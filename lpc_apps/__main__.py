"""`python -m lpc_apps` is the `lpc` command."""

from lpc_apps.commands.cli import main

main()
