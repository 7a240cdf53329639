"""The command line: one thin module a command, loaded when it is called."""
