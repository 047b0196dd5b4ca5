import sys

from fairlib.cli import main

sys.exit(main())
