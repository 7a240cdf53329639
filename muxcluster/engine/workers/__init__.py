"""Where jobs run: the programs of child processes, and workers that are threads."""
