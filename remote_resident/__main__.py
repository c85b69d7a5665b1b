"""`python -m remote_resident` is `tu`."""

import sys

from remote_resident.cli import main

if __name__ == "__main__":
    sys.exit(main())
