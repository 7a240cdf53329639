"""Parts of `muxcluster simulate`: options, cases, output."""
