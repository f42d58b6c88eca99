"""``python -m fl_components.cli`` is the console command ``fedmend``."""

import sys

from fl_components.cli import main

if __name__ == "__main__":
    sys.exit(main())
