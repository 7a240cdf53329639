"""A memory owner that imports no torch and loads nothing, so that it is there at once."""

import sys

from muxcluster.engine.workers.child_main import serve_unit

if __name__ == "__main__":
    sys.exit(serve_unit("mux-owner", int(sys.argv[1]), lambda spec: None, lambda *_: None))
