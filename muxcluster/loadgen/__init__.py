"""The load client of `muxcluster bench serve`: cheap while it runs, exact afterwards."""
