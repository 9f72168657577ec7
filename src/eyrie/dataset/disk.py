"""A full disk, whoever meets it first."""

from __future__ import annotations

import errno
import os

from eyrie.core.errors import EyrieError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def disk_full(error: OSError, where: str) -> EyrieError:
    """The error of a full disk."""
    return EyrieError(
        f"no space left to write ({os.strerror(error.errno or errno.ENOSPC)}).",
        where=where,
        todo="Free space or move eyrie_root to a larger disk, then run again: finished parts are kept.",
        code="disk-full",
    )
