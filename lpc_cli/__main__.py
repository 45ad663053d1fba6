"""`python -m lpc_cli` is the `lpc` command."""

from lpc_cli.start import main

main()
