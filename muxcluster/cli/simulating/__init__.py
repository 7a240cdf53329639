"""Parts of `muxcluster simulate`: what it reads, what it runs, what it prints and draws."""
