"""`python -m felixlike`: the command."""

import sys

from felixlike.cli import main

if __name__ == "__main__":
    sys.exit(main())
