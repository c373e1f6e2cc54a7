"""`python -m fastload` is the `fastload` command."""

import sys

from fastload.commands import main

sys.exit(main())
