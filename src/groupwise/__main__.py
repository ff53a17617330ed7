"""`python -m groupwise`: the command, where the package is on the path but not installed."""

import sys

from groupwise.cli import main

if __name__ == "__main__":
    sys.exit(main())
