"""The cluster's state as plain values, without Ray: desired, observed, next actions."""
