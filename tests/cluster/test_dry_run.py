"""A dry run decides, measures and records like the real one, and slurmctld never gets a write from it."""

from cluster.daemon_support import Rltuned
from cluster.failure_support import more_jobs
from cluster.support import OPERATOR, Cluster, on_the_oldest

# What a reader asks; everything else that clients may send counts as a write.
READS = {
    "REQUEST_JOB_INFO",
    "REQUEST_JOB_INFO_SINGLE",
    "REQUEST_JOB_USER_INFO",
    "REQUEST_NODE_INFO",
    "REQUEST_NODE_INFO_SINGLE",
    "REQUEST_PARTITION_INFO",
    "REQUEST_PRIORITY_FACTORS",
    "REQUEST_STATS_INFO",
    "REQUEST_STATS_RESET",  # the test's own, before
    "REQUEST_PING",
    "REQUEST_BUILD_INFO",
    "REQUEST_FED_INFO",
    "REQUEST_CONTROL_STATUS",
}
# What nodes and slurmdbd send.
OTHERS = {
    "MESSAGE_NODE_REGISTRATION_STATUS",
    "MESSAGE_EPILOG_COMPLETE",
    "REQUEST_COMPLETE_PROLOG",
    "REQUEST_COMPLETE_BATCH_SCRIPT",
    "REQUEST_STEP_COMPLETE",
    "ACCOUNTING_UPDATE_MSG",
    "ACCOUNTING_REGISTER_CTLD",
}


@on_the_oldest
def test_a_dry_run_sends_not_one_write_yet_plan_metrics_and_records_are_complete(cluster: Cluster):
    with Rltuned(cluster, cycle={"interval": 5.0}, placement={"apply": "oversubscribe"}) as rltuned:
        cluster.fill()
        cluster.workload(jobs=80, seed=5)
        more_jobs(cluster, 30, seed=5)
        nice = cluster.nice_values()
        cluster.reset_rpc_counts()

        daemon = rltuned.start("--dry-run")
        done = daemon.wait_cycles(2)
        metrics, log = daemon.metrics(), daemon.program.output()
        assert daemon.stop() == 0
        record, planned = rltuned.record(), rltuned.plan()
        chosen = record.changes[0][0]
        answer = rltuned.explain(chosen)[chosen]

        counts = cluster.sdiag_rpc_counts()
        assert counts.by_type.keys() - READS - OTHERS == set()
        assert counts.by_type["REQUEST_PRIORITY_FACTORS"] >= 3
        assert counts.by_user[OPERATOR] >= 20
        assert set(cluster.site_factors().values()) == {0}
        assert cluster.nice_values() == nice

        # The decision is whole: each pending job is managed or left alone for a reason, and ranked, scored, placed.
        assert sorted([*record.managed, *record.vetoes]) == sorted(cluster.priorities())
        assert sorted(record.column("rank").values()) == list(range(len(record.managed)))
        assert len(record.data["window"]["score"]) == len(record.data["window"]["values"]) == len(record.managed)
        assert record.data["placement"]["outcome"] not in {"off", ""}
        assert len(record.changes) > 20
        assert record.outcomes == {}
        assert planned.vetoes == record.vetoes
        assert len(planned.changes) > 20
        assert answer["verdict"] == "goes ahead"
        assert len(answer["features"]) == len(record.data["features"])

        # So are the metrics and the log.
        assert metrics["rltuned_pending_jobs"] == len(nice) == done[-1]["pending"]
        assert metrics["rltuned_managed_jobs"] == len(record.managed) == done[-1]["managed"]
        vetoed = {key: value for key, value in metrics.items() if key.startswith("rltuned_vetoed_jobs{")}
        assert sum(vetoed.values()) == len(record.vetoes) > 0
        assert metrics["rltuned_raised_jobs"] == done[-1]["raised"] > 20
        assert metrics["rltuned_lent_gpu_seconds"] == metrics["rltuned_open_loans"] == 0
        assert metrics['rltuned_cycles_total{outcome="done"}'] >= 2
        assert metrics['rltuned_stage{stage="shadow"}'] == 1
        for phase in ("read", "plan", "report", "total"):
            assert metrics[f'rltuned_cycle_duration_seconds_count{{phase="{phase}"}}'] >= 2
        assert metrics['rltuned_cycle_duration_seconds_count{phase="apply"}'] == 0
        assert sum(value for key, value in metrics.items() if key.startswith("rltuned_changes_total{")) == 0
        assert sum(value for key, value in metrics.items() if key.startswith("rltuned_placements_total{")) >= 2
        assert "dry run" in done[-1]["sentence"]
        assert "job.raised" not in log

        # The counter counts: the same daemon, allowed to write, is seen.
        assert rltuned.cycle().outcomes["applied"] > 0
        assert cluster.sdiag_rpc_counts().job_updates > 0
