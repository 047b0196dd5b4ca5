"""``python -m fairlib.cli`` is the console command."""

import sys

from fairlib.cli import main

if __name__ == "__main__":
    sys.exit(main())
