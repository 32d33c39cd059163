import json

from rltuned.daemon.heartbeat import is_stale


def test_the_heartbeat_is_stale_when_it_is_missing_or_older_than_several_cycles(tmp_path):
    assert is_stale(300, 1000, tmp_path)
    (tmp_path / "heartbeat.json").write_text(json.dumps({"time": 1000.0, "stale_after": 600.0, "pid": 1}))
    assert not is_stale(300, 1500, tmp_path)
    assert is_stale(300, 1601, tmp_path)
    (tmp_path / "heartbeat.json").write_text("{")
    assert is_stale(300, 1000, tmp_path)
