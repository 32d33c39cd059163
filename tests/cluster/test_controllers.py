"""A backup slurmctld takes over and gives back: of the two hosts' daemons one steers the queue, and hands it over."""

from typing import Any

import pytest
from cluster.daemon_support import Daemon, Rltuned
from cluster.support import NEWEST, Cluster, wait_until


def settings() -> dict[str, dict[str, object]]:
    return {
        "cycle": {"interval": 3.0},
        "policy": {"name": "sjf"},
    }


def last(daemon: Daemon) -> dict[str, Any]:
    """The last cycle; before the first, nothing in particular."""
    return (daemon.cycles() or [{"stage": "", "outcome": "", "changes": {}, "sentence": ""}])[-1]


def steers(pair: Cluster, daemon: Daemon, jobs: list[int]) -> bool:
    """The jobs are in its order, and its last cycle found nothing more to do."""
    done = last(daemon)
    if done["stage"] != "active" or done["outcome"] != "done" or done["changes"]:
        return False
    return pair.queue_order() == jobs[::-1]


def stands_by(daemon: Daemon, acting: str) -> bool:
    """It has given back all that was its own, and asks for nothing but who acts."""
    return f"stands by: slurmctld runs on {acting}; nothing of this daemon's is out" in last(daemon)["sentence"]


def test_of_two_controllers_the_daemon_beside_the_acting_one_writes_and_a_fail_over_hands_the_queue_over(pair: Cluster):
    jobs = pair.queue_longest_first()
    with Rltuned(pair, service="ctl", **settings()) as here, Rltuned(pair, service="ctl2", **settings()) as there:
        first, second = here.start(), there.start()
        wait_until(lambda: steers(pair, first, jobs), "the daemon of ctl steers")
        wait_until(lambda: stands_by(second, "ctl"), "the daemon of ctl2 stands by")
        assert here.doctor()["controllers"]["cause"] == "ctl, ctl2; ctl acts: the daemon of this host writes"
        assert there.doctor()["controllers"]["cause"] == "ctl, ctl2; ctl acts: the daemon of this host stands by"
        assert second.metrics()["rltuned_standby"] == 1

        pair.slurmctld.wait_saved()
        pair.slurmctld.stop("KILL")
        wait_until(lambda: last(second)["stage"] == "active", "the daemon of ctl2 takes over")
        wait_until(lambda: steers(pair, second, jobs), "the daemon of ctl2 steers")
        wait_until(lambda: stands_by(first, "ctl2"), "the daemon of ctl has given back and stands by")
        # But for what the other daemon wrote likewise: that is the other one's now.
        assert sum(done["restored"] for done in first.cycles()) > 0

        pair.slurmctld.start()
        wait_until(lambda: last(first)["stage"] == "active", "the daemon of ctl takes over again")
        wait_until(lambda: steers(pair, first, jobs), "the daemon of ctl steers again")
        wait_until(lambda: stands_by(second, "ctl"), "the daemon of ctl2 has given back and stands by")
        for rltuned, daemon in ((here, first), (there, second)):
            assert "foreign changes" not in rltuned.doctor()
            assert "orphans" not in rltuned.doctor()
            assert not daemon.log("cycle.defect")

        assert first.stop() == second.stop() == 0
        assert there.restore()["restored"] == []
        assert here.restore()["complete"]
        assert {pair.site_factors()[job] for job in jobs} == {0}


@pytest.mark.parametrize("pair", [NEWEST], indirect=True)
def test_a_restore_on_the_host_that_lost_its_slurmctld_goes_through_the_other_one(pair: Cluster):
    jobs = pair.queue_longest_first()
    with Rltuned(pair, service="ctl", **settings()) as here:
        daemon = here.start()
        wait_until(lambda: steers(pair, daemon, jobs), "the daemon of ctl steers")
        pair.slurmctld.wait_saved()
        daemon.program.kill("KILL")
        daemon.program.wait()
        pair.slurmctld.stop("KILL")
        listed = "sprio -h -o '%i' | grep -c ."
        wait_until(lambda: int(pair.sh(listed, check=False).stdout or 0) >= len(jobs), "ctl2 has taken over")
        assert set(pair.site_factors().values()) != {0}
        assert here.restore()["complete"]
        assert {pair.site_factors()[job] for job in jobs} == {0}
