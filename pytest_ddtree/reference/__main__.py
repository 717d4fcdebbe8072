"""``python -m pytest_ddtree.reference``: start the embedded server."""

from __future__ import annotations

import os
import sys

# BLAS reads these when NumPy is imported. One thread is fastest for products this small and leaves the other cores
# to the client that measures.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        from pytest_ddtree.reference import check

        sys.exit(check.main())
    from pytest_ddtree.reference.http.server import main

    sys.exit(main(sys.argv[1:]))
