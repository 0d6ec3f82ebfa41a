"""`python -m metaprior` is `metaprior`."""

import sys

from metaprior.cli import main

if __name__ == "__main__":
    sys.exit(main())
