"""The command line: a file per command. Nothing imports it but benchmarks and tests."""
