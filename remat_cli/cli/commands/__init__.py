"""One file per command: parse, one call of the api, report, exit code."""
