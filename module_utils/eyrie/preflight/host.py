# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""How the checks look at a host. Tests give them a recorded one with the same methods."""

from __future__ import annotations

import glob
import os
import resource
import socket
import subprocess
import tempfile
import time


class Host(object):
    """The host that the module runs on."""

    def __init__(self, module=None):
        self.module = module

    def run(self, argv, timeout=30):
        """(rc, stdout, stderr); rc 127 when the program is not there, 124 when it did not end in time."""
        env = dict(os.environ, LC_ALL="C")
        try:
            process = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout, env=env
            )
        except (OSError, ValueError) as problem:
            return 127, "", str(problem)
        except subprocess.TimeoutExpired:
            return 124, "", "%s did not end within %d s" % (argv[0], timeout)
        return process.returncode, process.stdout.decode("utf-8", "replace"), process.stderr.decode("utf-8", "replace")

    def read(self, path):
        """A file's text, '' when it cannot be read."""
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                return stream.read()
        except (IOError, OSError):
            return ""

    def glob(self, pattern):
        return sorted(glob.glob(pattern))

    def realpath(self, path):
        return os.path.realpath(path)

    def exists(self, path):
        return os.path.exists(path)

    def nearest(self, path):
        """The path or its nearest parent that exists."""
        path = os.path.abspath(path)
        while not os.path.exists(path):
            path = os.path.dirname(path)
        return path

    def space(self, path):
        """{total, free} bytes and {inodes} free of a path's file system, as the user sees it."""
        found = os.statvfs(self.nearest(path))
        size = found.f_frsize
        # a file system without inode tables (btrfs) says 0 of 0
        return {
            "total": found.f_blocks * size,
            "free": found.f_bavail * size,
            "inodes": found.f_favail if found.f_files else None,
        }

    def writable(self, path):
        return os.access(self.nearest(path), os.W_OK | os.X_OK)

    def root(self):
        return os.geteuid() == 0

    def limit(self, name):
        """(soft, hard) of a resource limit; None stands for unlimited."""
        pair = resource.getrlimit(getattr(resource, "RLIMIT_" + name))
        return tuple(None if value == resource.RLIM_INFINITY else value for value in pair)

    def now(self):
        return time.time()

    def reach(self, name, port, timeout=5):
        """'' when a TCP connection can be made, else why not."""
        try:
            socket.create_connection((name, port), timeout).close()
        except OSError as problem:
            return str(problem)
        return ""

    def proxies(self):
        names = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
        return any(os.environ.get(name) for name in names)

    def write_speed(self, folder, size=256 << 20, block=8 << 20):
        """Bytes a second of a short flushed write into a folder; the file is gone afterwards."""
        data = os.urandom(block)
        with tempfile.TemporaryFile(prefix=".eyrie-speed-", dir=self.nearest(folder)) as stream:
            begin = time.time()
            for _block in range(size // block):
                stream.write(data)
            stream.flush()
            os.fdatasync(stream.fileno())
            return size / max(time.time() - begin, 1e-6)

    def port_owners(self, port):
        """[(pid, command, environment)] of the processes that listen on a TCP port; pid 0 when it cannot be seen."""
        inodes = set()
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in self.read(table).splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and int(words[1].rsplit(":", 1)[1], 16) == port:
                    inodes.add("socket:[%s]" % words[9])
        if not inodes:
            return []
        owners = []
        for folder in glob.glob("/proc/[0-9]*"):
            try:
                held = any(os.readlink(link) in inodes for link in glob.glob(folder + "/fd/*"))
            except OSError:
                continue
            if held:
                command = self.read(folder + "/cmdline").replace("\0", " ").strip()
                owners.append((int(os.path.basename(folder)), command, self.read(folder + "/environ").split("\0")))
        return owners or [(0, "(a process of another user)", [])]
