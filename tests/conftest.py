"""What all tests need of the process they run in."""

from __future__ import annotations

import os
import signal

# A shell starts background jobs with SIGINT ignored, and their children, some of which are to be interrupted, would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Sessions that tests start would compile the package anew, assertions rewritten, where this is set: 0.6 s each, some hundred times.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
