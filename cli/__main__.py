"""`python -m kvtrail.cli`: the same command, for a parent that knows its interpreter but not its PATH."""

from .main import main

main()
