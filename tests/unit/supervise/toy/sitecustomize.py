"""Loaded by the job's interpreter (and by the test): a toy stage in the place of `dataset`."""

import sys
import time
import types
from dataclasses import dataclass

from eyrie.core.accounting import Account
from eyrie.core.spec import setting
from eyrie.core.stage import Outcome, Stage


@dataclass
class Settings:
    seconds: float = setting(0.0, identity=False)
    word: str = "a"
    crash: bool = setting(False, identity=False)


class Toy(Stage):
    name = "dataset"
    settings_type = Settings

    def run(self, ctx, work):
        if ctx.settings.crash:
            raise RuntimeError("toy crash")
        end = time.monotonic() + ctx.settings.seconds
        while time.monotonic() < end:
            work.check_stop()
            time.sleep(0.05)
        (ctx.out / "word").write_text(ctx.settings.word)
        return Outcome(Account(entered=1, kept=1), ["word"])


_module = types.ModuleType("eyrie.dataset.stage")
_module.STAGE = Toy()
sys.modules["eyrie.dataset.stage"] = _module
