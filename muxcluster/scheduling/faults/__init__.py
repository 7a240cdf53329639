"""What failed jobs change: who is suspected, how suspects run, who ends."""
