"""`python -m whyloop` is `whyloop`."""

import sys

from whyloop.cli import main

if __name__ == "__main__":  # Not in the processes that a command starts.
    sys.exit(main())
