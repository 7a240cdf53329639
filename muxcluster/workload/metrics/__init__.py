"""Throughput, latency, SLO attainment and fairness of requests that were served."""
