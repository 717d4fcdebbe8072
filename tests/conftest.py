"""What all tests need of the process they run in."""

from __future__ import annotations

import signal

# A shell starts background jobs with SIGINT ignored, and their children, some of which are to be interrupted, would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
