"""The command line: flags, commands, exit status."""
