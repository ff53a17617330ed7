"""`python -m groupwise.cli`: the form that `torchrun -m` starts on each rank."""

import sys

from groupwise.cli import main

if __name__ == "__main__":
    sys.exit(main())
