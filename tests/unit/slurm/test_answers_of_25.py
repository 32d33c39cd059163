"""25.05 and 25.11, of which no test has a cluster: what was recorded of 24.11, with what these two print differently.

From their sources: config_info.c, node_info.c, partition_info.c, sdiag.c, slurm_protocol_defs.c, squeue's, sprio's and
sacct's tables of columns, which lack none that rltuned asks for.
"""

import re

import pytest
from unit.slurm.standin import RECORDED

from rltuned.slurm import listings
from rltuned.slurm.cli import CliReader
from rltuned.slurm.listings import node_state

BASE = RECORDED / "24.11"
OF_CONFIG = {
    "25.05": ("25.05.9", "GetEnvTimeout", ("CertgenParameters = (null)", "CertgenType = (null)")),
    "25.11": (
        "25.11.8",
        "GetEnvTimeout|AccountingStorageUser|JobContainerType",
        (
            *("CliFilterParameters = (null)", "HttpParserType = http_parser/libhttp_parser", "JobCompPass = (null)"),
            *("MetricsType = (null)", "NamespaceType = (null)", "UrlParserType = url_parser/libhttp_parser"),
            *("EpilogTimeout = 60", "PrologTimeout = 30", "TopologyPlugin = topology/flat"),
        ),
    ),
}
"""Version, lines that are gone, lines that are new."""


def config_of(release):
    version, gone, new = OF_CONFIG[release]
    lines = re.sub(rf"(?m)^(?:{gone}|PrologEpilogTimeout|TopologyPlugin) .*\n", "", (BASE / "config.txt").read_text())
    return re.sub(r"(?m)^SLURM_VERSION .*$", "\n".join((*new, f"SLURM_VERSION = {version}")), lines)


def nodes_of(release):
    new = " TLSCertTokenSet=No TLSCertLastRenewal=1795600000 Topology=default:sw1"
    new += " Parameters=l3cache_as_socket" if release == "25.11" else ""
    return (BASE / "nodes.txt").read_text().replace("\n", new + "\n")


@pytest.fixture(params=sorted(OF_CONFIG))
def reader(slurm, request):
    slurm.load(BASE)
    slurm.answer("version", f"slurm {OF_CONFIG[request.param][0]}\n")
    slurm.answer("config", config_of(request.param))
    slurm.answer("nodes", nodes_of(request.param))
    partitions = (BASE / "partitions.txt").read_text()
    slurm.answer("partitions", re.sub(r"(PreemptMode=\S+)", r"\1 Topology=racks", partitions))
    return CliReader(slurm.runner())


@pytest.fixture
def recorded(slurm):
    slurm.load(BASE)
    return CliReader(slurm.runner()).snapshot(1795245000.0)


def test_the_queue_nodes_and_partitions_are_read_as_those_of_24_11(recorded, reader):
    found = reader.snapshot(1795245000.0)
    assert not found.unread
    assert found.jobs.job_id.tolist() == recorded.jobs.job_id.tolist()
    assert found.jobs.base.tolist() == recorded.jobs.base.tolist()
    assert found.nodes.names == recorded.nodes.names
    for column in ("gpus", "usable", "cpus_alloc"):
        assert getattr(found.nodes, column).tolist() == getattr(recorded.nodes, column).tolist()
    assert [part.name for part in found.partitions] == [part.name for part in recorded.partitions]
    assert all("Topology=racks" in part.not_simulated for part in found.partitions)
    assert reader.status(None)


def test_the_configuration_is_understood(reader):
    facts = reader.facts()
    assert facts.release in {(25, 5), (25, 11)}
    assert facts.priority_type == "priority/multifactor"
    assert "bf_continue" in facts.scheduler_parameters
    assert not any(said.startswith("TopologyPlugin") for said in facts.not_simulated)


def test_a_node_without_slurmd_takes_no_job_of_ours_and_is_not_there_in_a_replay():
    """sbatch(1) --external: slurmctld keeps all other jobs off it (node_scheduler.c, external_node_bitmap)."""
    state = node_state("IDLE+EXTERNAL")
    assert (state.usable, state.counts) == (False, False)


@pytest.mark.parametrize("said", ["Exclusive=USER", "Exclusive=TOPO", "ExclusiveTopo=YES", "Topology=racks"])
def test_what_a_partition_may_say_of_topology_and_users_is_not_simulated(said):
    line = (BASE / "partitions.txt").read_text().partition("\n")[0]
    (plain,), _ = listings.partitions(f"{line}\n")
    (found,), _ = listings.partitions(re.sub(rf" {said.partition('=')[0]}=\S+", "", line) + f" {said}\n")
    assert found.partition.not_simulated == (*plain.partition.not_simulated, said)
