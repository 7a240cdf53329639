"""Demand of simulated units: loads, requests, waves of requests, fed batch jobs."""
