"""`python -m strata_cli`."""

from __future__ import annotations

import sys

from strata_cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
