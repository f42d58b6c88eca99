"""``python -m fl_components.cli`` is the console command ``fedmend``."""

import sys

from fl_components.cli import main

sys.exit(main())
