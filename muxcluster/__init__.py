"""muxcluster: many large language models on one shared GPU cluster, on Ray."""

__version__ = "0.1.0"
