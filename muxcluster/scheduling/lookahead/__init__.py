"""Jobs launched or simulated before the ones they follow have ended."""
