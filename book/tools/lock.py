"""Lock an open file of the calling shell: `exec 9> FILE; python3 book/tools/lock.py 9 [SECONDS]`.

The lock is flock(2)'s, so it stays with the shell's descriptor after this process, until the last
process that inherited it has ended. Exits with 75 if another build holds the lock for longer than
SECONDS; without SECONDS it waits. Where the file system has no locks it says so, and the build goes
on, as ``whopays run`` does. Runs before there is an environment, with any Python 3, and where
there is no `flock` command (macOS).
"""

import errno
import fcntl
import signal
import sys
import time


def main(descriptor, seconds="inf"):
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end = time.monotonic() + float(seconds)
    while True:
        try:
            fcntl.flock(int(descriptor), fcntl.LOCK_EX | fcntl.LOCK_NB)
            return 0
        except BlockingIOError:
            if time.monotonic() >= end:
                return 75
            time.sleep(0.1)
        except OSError as error:
            if error.errno == errno.EBADF:
                raise
            # A network drive may have no locks: a build without one beats no build.
            print("no file locks here: start one build at a time", file=sys.stderr)
            return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
