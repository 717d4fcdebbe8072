"""How each family of SGLang builds spells a config, and how the config in force is read back.

A dialect turns a grid point into arguments and environment, says what its knobs mean in that build, and reads `/server_info` and the
log back into one `EffectiveConfig`. It starts nothing and opens nothing: `pytest_ddtree.servers` does.
"""

from __future__ import annotations
