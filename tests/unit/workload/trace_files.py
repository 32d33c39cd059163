"""What the tests of the product's reader and of the studies' reader have in common."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from rltuned.core.errors import WorkloadError
from rltuned.simulate.workload.jobs import Workload

Read = Callable[..., Workload]


def write(tmp_path: Path, data: str | bytes, name: str = "trace") -> Path:
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def texts(column) -> list[str]:
    return [column.value(row) for row in range(len(column))]


def at_line(text: str, number: int, old: str, new: str) -> str:
    changed = text.splitlines(keepends=True)
    assert old in changed[number - 1]
    changed[number - 1] = changed[number - 1].replace(old, new, 1)
    return "".join(changed)


def wrong_line_is_named_or_counted(read: Read, tmp_path: Path, text: str, number: int, changed: str, reason: str):
    """`changed`: the text with that line made wrong."""
    whole = read(write(tmp_path, text))
    path = write(tmp_path, changed)
    with pytest.raises(WorkloadError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}:{number}: {reason}")
    jobs = read(path, skip_bad=True)
    assert jobs.source.skipped == 1
    assert sorted(jobs.line.tolist()) == sorted(set(whole.line.tolist()) - {number})


def damaged_file_is_read_or_refused_by_name(read: Read, folder: Path, samples: Sequence[str], data: st.DataObject):
    good = data.draw(st.sampled_from(samples)).encode()
    at = data.draw(st.integers(0, len(good)))
    cut = data.draw(st.integers(0, 20))
    path = write(folder, good[:at] + data.draw(st.binary(max_size=8)) + good[at + cut :])
    for skip_bad in (False, True):
        try:
            jobs = read(path, skip_bad=skip_bad)
        except WorkloadError as error:
            refused = str(error)
        else:
            refused = ""
        if refused:
            assert refused.startswith(str(path))
            continue
        assert np.isfinite(jobs.run_time).all()
        assert (jobs.run_time >= 0).all()
        assert (jobs.gpus >= 0).all()
        assert (np.diff(jobs.submit_time) >= 0).all()
        assert jobs.submit_time[0] == 0
        assert len(set(jobs.job_id.tolist())) == len(jobs)
