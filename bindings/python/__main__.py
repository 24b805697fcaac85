# SPDX-License-Identifier: Apache-2.0
"""`python -m ostinato` is `ostinato`."""

import sys

from ostinato.cli import main

if __name__ == "__main__":
    sys.exit(main())
