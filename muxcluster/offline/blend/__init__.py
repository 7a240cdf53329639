"""BlendServe (arXiv 2411.16102): order a batch so that compute and memory are busy together."""
