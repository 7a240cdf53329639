"""Files of workloads and traces, read with every field checked."""
