"""The policies that there are, as the one table of them says."""

from __future__ import annotations

import re
from pathlib import Path

TABLE = Path(__file__).resolve().parents[2] / "ipc" / "base" / "policies.h"
POLICIES = tuple(re.findall(r'^  POLICY\(\d+, \w+, "([^"]+)"\)', TABLE.read_text(), re.MULTILINE))
