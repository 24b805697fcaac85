# SPDX-License-Identifier: Apache-2.0
"""`python -m ostinato.profile` is `ostinato profile`."""

import sys

from ostinato.profile.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
