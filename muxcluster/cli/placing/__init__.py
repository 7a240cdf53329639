"""Parts of `muxcluster place` around the planner: input, reports, output."""
