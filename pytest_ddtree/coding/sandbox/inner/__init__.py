"""What runs inside the sandbox: the zygote and its forked children.

A fresh interpreter imports this folder as a package of its own, so modules here use relative imports and the
standard library only, and must hold nothing that a solution may not see: no problem, test or expected value.
"""
