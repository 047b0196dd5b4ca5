"""``python -m whopays``: the console command."""

import sys

from whopays.cli import main

if __name__ == "__main__":
    sys.exit(main())
