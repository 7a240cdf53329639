"""What the server does now, as one JSON value: for `muxcluster top` and for the page /dashboard."""
