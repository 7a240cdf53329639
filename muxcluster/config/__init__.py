"""Configuration: muxcluster.yaml as frozen values, plans, and unit specifications."""
