"""A program that tries to leave the sandbox: what the sandbox must withstand before it runs anything else."""

from typing import Final

ESCAPES: Final = '''
import ctypes, os, signal

def escapes(foreign_file):
    """Names of the ways out that are open."""
    def read_file():
        open(foreign_file).close()
    def list_folder():
        os.listdir("/etc")
    def write_file():
        open("here", "w").close()
    def start_process():
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    def execute():
        os.execv("/bin/true", ["true"])
    def signal_parent():
        os.kill(os.getppid(), 0)
    def open_socket():
        import socket
        socket.socket().close()
    def read_environment():
        open("/proc/%d/environ" % os.getppid()).close()
    def raise_limit():
        import resource
        resource.setrlimit(resource.RLIMIT_CPU, (10**6, 10**6))
    def trace():
        libc = ctypes.CDLL(None)
        if libc.ptrace(16, os.getppid(), 0, 0) != 0:
            raise OSError
    found = []
    for attempt in (read_file, list_folder, write_file, start_process, execute, signal_parent, open_socket,
                    read_environment, raise_limit, trace):
        try:
            attempt()
        except (OSError, ValueError):
            continue
        found.append(attempt.__name__)
    return found
'''
