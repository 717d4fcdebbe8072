"""``python -m pytest_ddtree.reference``: start the embedded server."""

from __future__ import annotations

import os
import signal
import sys

# BLAS reads these when NumPy is imported. One thread is fastest for products this small and leaves the other cores
# to the client that measures.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


def main(words: list[str]) -> int:
    """Look at a command line (`--check`), or serve; returns the exit status."""
    if "--check" in words and not {"-h", "--help"}.intersection(words):
        from pytest_ddtree.reference import check

        return check.main([word for word in words if word != "--check"])
    from pytest_ddtree.reference.http import server

    return server.main(words)


def piped(words: list[str]) -> int:
    """As `main`; the exit status where nobody reads the help or the list of faults any more (`| head`) is that of SIGPIPE."""
    try:
        try:
            return main(words)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


if __name__ == "__main__":
    sys.exit(piped(sys.argv[1:]))
