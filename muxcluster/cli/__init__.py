"""The command line: one thin module per command, imported when it is called."""
