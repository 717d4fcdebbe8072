"""A stand-in for SGLang: same module name, same command line, real processes and sockets, behaviour from a script."""
