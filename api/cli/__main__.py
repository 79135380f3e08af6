"""`python -m remesh.cli`: the command where the interpreter is known and its script may not be."""

import sys

from remesh.cli.main import main

sys.exit(main())
