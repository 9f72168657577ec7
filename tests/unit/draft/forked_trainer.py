"""The trainer's process forked from a server that has the heavy imports already: the same code, seconds sooner.

`preload()` names this module to multiprocessing's fork server; importing it there does the imports.
"""

import multiprocessing
import os
import sys

if multiprocessing.current_process().name != "MainProcess" or "forkserver" in " ".join(sys.argv):
    from eyrie.draft import backend

    backend.register()
    import speculators.train.cli  # noqa: F401

CONTEXT = multiprocessing.get_context("forkserver")


def preload():
    CONTEXT.set_forkserver_preload(["forked_trainer"])


def child(arguments, folder, log_path, environment):
    """What `python -m eyrie.draft.trainer` is: own session, own log, own exit status."""
    os.setsid()
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(environment)
    os.chdir(folder)
    from eyrie.draft import trainer

    sys.exit(trainer.main(arguments))


class Forked:
    """As much of subprocess.Popen as launch.Trainer uses."""

    def __init__(self, command, stdout, cwd, env, **other):
        arguments = command[command.index("eyrie.draft.trainer") + 1 :]
        extra = {key: value for key, value in env.items() if os.environ.get(key) != value}
        self._process = CONTEXT.Process(target=child, args=(arguments, str(cwd), stdout.name, extra))
        self._process.start()
        self.pid = self._process.pid

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        import subprocess

        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("trainer", timeout)
        return self._process.exitcode
