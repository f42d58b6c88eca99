"""Makes ``factories`` importable and keeps the test folders, named like the packages, from hiding the packages."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "custom"), str(ROOT)]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny tensors lose more time to threads than they gain
