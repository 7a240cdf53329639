"""What `muxcluster place` reads, computes, prints and draws around the planner."""
