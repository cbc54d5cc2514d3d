"""`python -m whyloop` is `whyloop`."""

import sys

from whyloop.cli import main

sys.exit(main())
