"""What the compat planner cannot answer, and why."""


class CompatError(ValueError):
    """The problem or the profile is outside what the reference planner supports."""
