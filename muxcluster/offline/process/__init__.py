"""A child process for plans, which take longer than an event loop or a unit may stand still."""
