"""One file per command: parse the arguments, make one call into the library, print the report, return an exit code."""
