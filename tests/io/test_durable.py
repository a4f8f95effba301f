"""What users are told where the system refuses to write."""

import errno
import os
from pathlib import Path

import pytest

from pbvf_offline.errors import ResourceError
from pbvf_offline.io.durable import resource_errors


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "free some disk space and run"),
        (OSError(errno.EACCES, os.strerror(errno.EACCES)), "allow writing there, and run"),
        (OSError(errno.EPERM, os.strerror(errno.EPERM)), "allow writing there, and run"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), "choose a folder that can be written"),
        (OSError(errno.EIO, os.strerror(errno.EIO)), "check the disk"),
        (MemoryError(), "close other programs, and run"),
    ],
)
def test_the_remedy_is_for_what_was_refused(error, words):
    for note in ("", "three files are safe"):
        with pytest.raises(ResourceError) as told, resource_errors(Path("a"), note.strip):
            raise error
        assert told.value.where == "a"
        assert told.value.remedy.startswith(words)
        assert told.value.remedy.partition("; ")[2] == note


def test_the_error_names_the_file_that_the_system_names():
    refusal = PermissionError(errno.EACCES, os.strerror(errno.EACCES), "a/b")
    with pytest.raises(ResourceError) as told, resource_errors(Path("a")):
        raise refusal
    assert (told.value.where, told.value.what) == ("a/b", "cannot write: Permission denied")
