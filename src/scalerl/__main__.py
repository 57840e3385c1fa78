"""`python -m scalerl` is `scalerl`."""

import sys

from scalerl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
