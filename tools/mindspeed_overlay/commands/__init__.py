"""One module per command: parse, call, report, return an exit code."""
