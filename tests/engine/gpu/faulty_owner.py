"""The real owner with the faulty worker."""

import sys

from muxcluster.engine.gpu.mps import owner

if __name__ == "__main__":
    sys.exit(owner.main(int(sys.argv[1]), int(sys.argv[2]), "tests.engine.gpu.faulty_worker"))
