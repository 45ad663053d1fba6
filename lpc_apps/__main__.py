"""`python -m lpc_apps` is the `lpc` command."""

from lpc_apps.start import main

main()
