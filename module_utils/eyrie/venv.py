# Copyright: Eyrie authors
# Apache-2.0 (see LICENSE)
"""The node's Python environment: what it should be made of, what it is, and how one becomes the other."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import time

from ansible.module_utils.eyrie import pip

ARGUMENTS = {
    "path": {"type": "path", "required": True},
    "lock": {"type": "str", "required": True},
    "python": {"type": "list", "elements": "str", "default": ["python3.11", "python3"]},
    "torch_index": {"type": "str", "default": ""},
    "find_links": {"type": "str", "default": ""},
    "pip_cache": {"type": "str", "default": ""},
    "pip_processes": {"type": "int", "default": 2},
    "metadata_only": {"type": "dict", "default": {}},
    "system_packages": {"type": "list", "elements": "str", "default": []},
    "wheel": {"type": "path"},
    "wheel_sha256": {"type": "str", "default": ""},
}
MINIMUM = (3, 11)
COMPLETE = "eyrie-venv.json"
PACKAGE = "eyrie-package.json"
#: an install takes a minute from a near index, some from a far one
INSTALLER_LIMIT_S = 900
PROBE = (
    "import json, sys, importlib.util as u;"
    "print(json.dumps({'version': list(sys.version_info[:3]), 'executable': sys.executable,"
    " 'venv': bool(u.find_spec('ensurepip') and u.find_spec('venv'))}))"
)


class VenvError(Exception):
    """The environment cannot be made; `result` holds fail_json's further arguments."""

    def __init__(self, msg, **result):
        super(VenvError, self).__init__(msg)
        self.msg = msg
        self.result = result


def pins(text):
    """{canonical name: version} of a lock; refuses lines that are no exact pin."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        match = re.match(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.!+_-]+)$", line)
        if not match:
            raise VenvError("Line %d of the lock is no exact pin (name==version): %r" % (number, line))
        found[canonical(match.group(1))] = match.group(2)
    if not found:
        raise VenvError("The lock is empty.")
    return found


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(environment):
    """{canonical name: version} of what lies in an environment's site-packages; nothing is imported."""
    found = {}
    for folder in glob.glob(os.path.join(environment, "lib", "python3*", "site-packages", "*.dist-info")):
        name, _dash, version = os.path.basename(folder)[: -len(".dist-info")].rpartition("-")
        if name and os.path.exists(os.path.join(folder, "METADATA")):
            found[canonical(name)] = version
    return found


def read_json(path):
    try:
        with open(path, encoding="utf-8") as stream:
            value = json.load(stream)
    except (IOError, OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path, value):
    """Durably: whoever reads it can trust that what it vouches for is on the disk."""
    with open(path + ".new", "w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=2, sort_keys=True)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(path + ".new", path)


def running_stages(root):
    """Names of the stages whose lock is held below a root."""
    found = []
    for path in sorted(glob.glob(os.path.join(root, "runs", "*", "state", "*", "lock"))):
        try:
            with open(path, "rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (IOError, OSError) as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                found.append(path.split(os.sep)[-2])
    return found


def find_python(names, run):
    """{version, executable, venv} of the first interpreter that runs and is new enough; VenvError when none is.

    run: callable(argv) -> (rc, stdout, stderr).
    """
    seen = []
    for name in names:
        path = shutil.which(name)
        if not path:
            seen.append("%s: not there" % name)
            continue
        rc, out, err = run([path, "-c", PROBE])
        try:
            answer = json.loads(out)
        except ValueError:
            seen.append("%s: does not run (%s)" % (path, (err.strip().splitlines() or ["rc %d" % rc])[-1]))
            continue
        text = ".".join(str(part) for part in answer["version"])
        if tuple(answer["version"][:2]) >= MINIMUM:
            return dict(answer, version=text)
        seen.append("%s: %s" % (path, text))
    raise VenvError(
        "There is no Python %d.%d or later on this host. Looked at: %s." % ((*MINIMUM, "; ".join(seen))),
        todo="Install one (Debian 12 and 13 have it: apt-get install python3 python3-venv), or name it in "
        "eyrie_runtime_python.",
        code="no-python",
    )


def digest_of(pinned, params, python):
    """Hash of all that decides what lies in the environment; the node package has its own."""
    wanted = {
        "python": ".".join(python["version"].split(".")[:2]),
        "pins": pinned,
        "metadata_only": params.get("metadata_only") or {},
        "torch_index": params.get("torch_index") or "",
        "find_links": params.get("find_links") or "",
    }
    return hashlib.sha256(json.dumps(wanted, sort_keys=True).encode("utf-8")).hexdigest()


def is_complete(folder, digest):
    marked = read_json(os.path.join(folder, COMPLETE)).get("digest") == digest
    return marked and os.access(os.path.join(folder, "bin", "python"), os.X_OK)


def is_installed(root, params, python):
    """Whether the environment that eyrie_venv's parameters describe is complete below a root."""
    digest = digest_of(pins(params["lock"]), params, python)
    return is_complete(os.path.join(root, "venvs", digest[:12]), digest)


class Environment(object):
    """The environment that the module's parameters describe."""

    def __init__(self, module):
        self.module = module
        self.params = module.params
        self.link = self.params["path"].rstrip("/")
        self.root = os.path.dirname(self.link)
        self.pins = pins(self.params["lock"])
        self.python = None

    def run(self):
        self.python = find_python(self.params["python"], self.module.run_command)
        digest = self.digest()
        folder = os.path.join(self.root, "venvs", digest[:12])
        missing_system = self.missing_system()
        complete = is_complete(folder, digest)
        current = os.path.realpath(self.link) == os.path.realpath(folder)
        package = not self.params["wheel_sha256"] or (complete and self.has_package(folder))
        differences = self.differences(folder, complete, current, package, missing_system)
        result = {
            "changed": bool(differences),
            "python": self.python,
            "environment": folder,
            "differences": differences,
            "diff": as_diff(differences),
            "msg": "The environment is up to date (%s)." % digest[:12],
        }
        if not differences:
            return result
        count = 0 if complete else len(self.pins)
        result["msg"] = "%s: %d distributions" % ("Would install" if self.module.check_mode else "Installed", count)
        result["msg"] += "" if package else " and the node package"
        if missing_system:
            self.refuse_without_root(missing_system)
        if self.module.check_mode:
            return result
        started = time.time()
        self.refuse_while_running()
        if missing_system:
            pip.apt_install(self.module, missing_system, VenvError)
        with self.sole_installer() as lock:
            if not is_complete(folder, digest):
                self.install(folder, digest, lock)
            if not package:
                self.install_package(folder)
            self.switch(folder)
        result["seconds"] = round(time.time() - started, 1)
        return result

    # what is wanted

    @property
    def minor(self):
        return ".".join(self.python["version"].split(".")[:2])

    def digest(self):
        return digest_of(self.pins, self.params, self.python)

    def missing_system(self):
        wanted = list(self.params["system_packages"])
        if not self.python["venv"]:
            wanted.append("python%s-venv" % self.minor)
        if not wanted:
            return []
        absent = pip.dpkg_absent(self.module, wanted)
        return sorted(absent)

    # what is there

    def differences(self, folder, complete, current, package, missing_system):
        """[{name, current, desired}]: distributions first, then the environment's own state."""
        found = []
        if not complete:
            before = installed(os.path.realpath(self.link)) if os.path.isdir(self.link) else {}
            for name in sorted(self.pins):
                if before.get(name) != self.pins[name]:
                    found.append({"name": name, "current": before.get(name), "desired": self.pins[name]})
            if not found:
                found.append({"name": "environment", "current": "incomplete or made otherwise", "desired": "complete"})
        if not package:
            found.append(
                {
                    "name": "eagle-eyrie",
                    "current": self.package_now(folder),
                    "desired": self.params["wheel_sha256"][:12],
                }
            )
        if complete and not current:
            found.append({"name": "environment in force", "current": os.path.realpath(self.link), "desired": folder})
        found += [
            {"name": "system package " + name, "current": None, "desired": "installed"} for name in missing_system
        ]
        return found

    def has_package(self, folder):
        marked = read_json(os.path.join(folder, PACKAGE)).get("sha256") == self.params["wheel_sha256"]
        return marked and os.access(os.path.join(folder, "bin", "eyrie"), os.X_OK)

    def package_now(self, folder):
        for place in (folder, os.path.realpath(self.link)):
            digest = read_json(os.path.join(place, PACKAGE)).get("sha256")
            if digest:
                return digest[:12]
        return None

    # the act

    def refuse_without_root(self, packages):
        if os.geteuid() != 0 or not self.module.get_bin_path("apt-get"):
            raise VenvError(
                "System packages are missing: %s." % ", ".join(packages),
                todo="As root: apt-get install %s" % " ".join(packages),
                code="system-packages",
            )

    def refuse_while_running(self):
        running = running_stages(self.root)
        if running:
            raise VenvError(
                "The environment differs, and it is not replaced while a stage is running: %s." % ", ".join(running),
                todo="Wait for it (playbooks/status.yml), or stop it with `eyrie stop`; it resumes later.",
                code="stage-running",
            )

    @contextlib.contextmanager
    def sole_installer(self):
        """Hold the installers' lock. pip inherits it: one that outlived its killed play is waited for, never raced."""
        os.makedirs(os.path.join(self.root, "venvs"), exist_ok=True)
        with open(os.path.join(self.root, "venvs", ".lock"), "a+b") as lock:
            deadline = time.time() + INSTALLER_LIMIT_S
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if time.time() > deadline:
                        raise VenvError(
                            "Another install into %s has been running for %d s." % (self.root, INSTALLER_LIMIT_S),
                            todo="Look for its pip processes (`fuser %s`); run again when they have ended." % lock.name,
                            code="installer-running",
                        ) from None
                    time.sleep(0.5)
            yield lock

    def install(self, folder, digest, lock):
        """Build the environment in its folder from nothing; the marker is the last thing written."""
        shutil.rmtree(folder, ignore_errors=True)
        if os.path.isdir(folder):
            raise VenvError("An incomplete environment could not be removed: %s" % folder, todo="Remove it by hand.")
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        argv = [self.python["executable"], "-m", "venv", folder]
        rc, out, err = self.module.run_command(argv)
        if rc != 0:
            raise VenvError(
                "The environment %s could not be made (rc %d)." % (folder, rc),
                cmd=argv,
                stderr_lines=(out + err).splitlines()[-15:],
                todo="See the lines above; a full disk and a missing python%s-venv are the usual causes." % self.minor,
            )
        params = dict(self.params, scratch=os.path.join(self.root, "cache", "tmp"), lock=lock)
        pip.install(self.module, folder, self.pins, params, VenvError)
        pip.add_metadata_only(folder, self.params["metadata_only"])
        self.check_pins(folder)
        write_json(
            os.path.join(folder, COMPLETE),
            {"digest": digest, "python": self.python["version"], "distributions": len(self.pins), "made": time.time()},
        )
        if self.params["pip_cache"]:
            shutil.rmtree(self.params["pip_cache"], ignore_errors=True)

    def check_pins(self, folder):
        """pip's exit code proves nothing: what lies there must be the lock."""
        there = installed(folder)
        wrong = ["%s %s (found %s)" % (n, v, there.get(n)) for n, v in sorted(self.pins.items()) if there.get(n) != v]
        if wrong:
            raise VenvError("pip ended well, but the environment is not what was asked: %s." % ", ".join(wrong[:8]))

    def install_package(self, folder):
        """Install the node package's wheel; its marker goes first and comes back last."""
        marker = os.path.join(folder, PACKAGE)
        if os.path.exists(marker):
            os.unlink(marker)
        wheel = self.params["wheel"] or ""
        if not os.path.isfile(wheel):
            raise VenvError(
                "The node package's wheel is not on the host: %s" % wheel, todo="Run playbooks/provision.yml."
            )
        pip.install_wheel(self.module, folder, wheel, VenvError)
        write_json(marker, {"sha256": self.params["wheel_sha256"], "wheel": os.path.basename(wheel)})

    def switch(self, folder):
        """Put the link on the new environment, and remove all but it and the one before."""
        before = os.path.realpath(self.link)
        if os.path.isdir(self.link) and not os.path.islink(self.link):
            raise VenvError("%s is a folder, not Eyrie's link." % self.link, todo="Move it away.")
        if before != os.path.realpath(folder):
            new = self.link + ".new"
            if os.path.lexists(new):
                os.unlink(new)
            os.symlink(os.path.relpath(folder, self.root), new)
            os.replace(new, self.link)
            for other in glob.glob(os.path.join(self.root, "venvs", "*")):
                if os.path.realpath(other) not in (before, os.path.realpath(folder)):
                    shutil.rmtree(other, ignore_errors=True)


def as_diff(differences):
    def text(side):
        return "".join("%s==%s\n" % (d["name"], d[side]) for d in differences if d[side] is not None)

    return {
        "before_header": "environment (as it is)",
        "after_header": "environment (as locked)",
        "before": text("current"),
        "after": text("desired"),
    }
