"""The clock jumps: FAULT_CLOCK="SECONDS_FROM_NOW,JUMP" shifts time.time() by JUMP seconds from that moment on."""

import os
import time

_at, _, _jump = os.environ.get("FAULT_CLOCK", "").partition(",")
if _jump:
    _real, _real_ns = time.time, time.time_ns
    _moment = time.monotonic() + float(_at)

    def _offset():
        return float(_jump) if time.monotonic() >= _moment else 0.0

    time.time = lambda: _real() + _offset()
    time.time_ns = lambda: _real_ns() + int(_offset() * 1e9)
