"""Handing out the requests of a planned job while it runs, as memory comes free."""
