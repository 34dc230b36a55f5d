"""The number of this process and of all processes: the variables of launchers, and flags."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hlo_run.errors import UsageError
from hlo_run.options import Options
from hlo_run.processes.launcher import FlagsFound, Launch, first_host, launch_of, launch_of_failed, launch_of_flags, split_address

TORCHRUN = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}
SLURM = {
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NODELIST": "gpu[004-007],login",
    "SLURM_JOB_ID": "4097",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-host-12@1",
}


def test_variables_of_launchers() -> None:
    assert launch_of({}) == Launch()
    assert launch_of(TORCHRUN) == Launch(4, 3, "10.0.0.7:29500", 1, "torchrun")
    # The agent of torchrun has the port itself.
    assert launch_of({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}).address == "10.0.0.7:29501"
    assert launch_of({**TORCHRUN, "MASTER_ADDR": "fe80::1"}).address == "[fe80::1]:29500"
    assert launch_of(SLURM) == Launch(8, 2, "gpu004:61441", 0, "Slurm")
    found = launch_of(OPEN_MPI)
    assert (found.count, found.number, found.local_number) == (2, 1, 1)
    assert split_address(found.address)[0] == "127.0.0.1"
    assert launch_of(OPEN_MPI).address == launch_of({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0"}).address
    assert launch_of({"PMI_SIZE": "2", "PMI_RANK": "0"}) == Launch(2, 0, "", 0, "PMI")


def test_processes_of_one_machine_meet_there() -> None:
    assert launch_of({**SLURM, "SLURM_STEP_NUM_NODES": "1"}).address == "127.0.0.1:61441"
    assert launch_of({**SLURM, "SLURM_STEP_NUM_NODES": "2"}).address == "gpu004:61441"
    assert launch_of({**SLURM, "SLURM_STEP_ID": "1"}).address == "gpu004:61950"
    hydra = {"PMI_SIZE": "2", "PMI_RANK": "0", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", "I_MPI_HYDRA_UUID": "4e42-5c"}
    assert launch_of(hydra).address.startswith("127.0.0.1:6")
    assert launch_of({**hydra, "MPI_LOCALNRANKS": "1"}).address == ""


def test_mpi_launchers_in_jobs_of_slurm() -> None:
    """They start a task of their own per machine, whose variables the processes have, too."""
    task = {**SLURM, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_STEP_NODELIST": "gpu005"}
    job = {**task, "SLURM_JOB_NODELIST": "gpu[004-005]"}
    hydra = {"PMI_SIZE": "8", "PMI_RANK": "5", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
    assert launch_of({**job, **hydra}) == Launch(8, 5, "gpu004:61441", 1, "PMI")
    found = launch_of({**job, **OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "SLURM_STEP_NUM_NODES": "1"})
    assert (found.launcher, split_address(found.address)[0]) == ("Open MPI", "gpu004")


def test_what_is_no_launch_of_several_processes() -> None:
    batch_script = {"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}
    other_program = {"WORLD_SIZE": "4", "RANK": "1"}
    for environment in (batch_script, other_program, {**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}):
        assert launch_of(environment) == Launch()
    assert launch_of({"MASTER_ADDR": "h", "MASTER_PORT": "1"}) == Launch()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({**TORCHRUN, "WORLD_SIZE": "four"}, "WORLD_SIZE='four' is not a number"),
        ({**TORCHRUN, "RANK": "4"}, "RANK=4 and WORLD_SIZE=4: the processes are numbered from 0 to 3"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "-1"}, "numbered from 0 to 1"),
        ({name: value for name, value in TORCHRUN.items() if name != "RANK"}, "torchrun's variable RANK is missing"),
        ({name: value for name, value in TORCHRUN.items() if name != "WORLD_SIZE"}, "variable WORLD_SIZE is missing"),
        ({"PMI_RANK": "0"}, "variable PMI_SIZE is missing"),
    ],
)
def test_variables_that_do_not_fit_each_other(environment: dict[str, str], message: str) -> None:
    """A process that took itself for the only one would report success without the others."""
    with pytest.raises(UsageError, match=message) as caught:
        launch_of_flags(Options(), environment)
    assert caught.value.hint == "--num_nodes=1 ignores the launcher" or "not a number" in message
    assert launch_of_flags(replace(Options(), num_nodes=1), environment) == Launch()
    given = replace(Options(), num_nodes=2, task_id=1, address="h:5")
    assert launch_of_flags(given, environment) == Launch(2, 1, "h:5", 1)


def test_flags_come_before_launchers() -> None:
    def launch(environment: dict[str, str], **flags: object) -> Launch:
        return launch_of_flags(replace(Options(), **flags), environment)

    assert launch(TORCHRUN).number == 3
    assert launch(TORCHRUN, num_nodes=1) == Launch()
    assert launch({}, num_nodes=1, address="h:5") == Launch()
    assert launch(TORCHRUN, address="h:5").address == "h:5"
    assert launch({}, num_nodes=2, task_id=1, address="[::1]:5") == Launch(2, 1, "[::1]:5", 1)
    for flags, message in (
        ({"num_nodes": 2, "address": "h:5"}, "needs --task_id"),
        ({"num_nodes": 2, "task_id": 2, "address": "h:5"}, "numbered from 0 to 1"),
        ({"num_nodes": 2, "task_id": 0}, "where process 0 listens is unknown"),
        ({"num_nodes": 2, "task_id": 0, "address": "h"}, "is not HOST:PORT"),
        ({"num_nodes": 2, "task_id": 0, "address": "h:70000"}, "is not HOST:PORT"),
        ({"task_id": 1}, "needs --num_nodes"),
        ({"address": "h:5"}, "--address=h:5 needs --num_nodes"),
    ):
        with pytest.raises(UsageError, match=message):
            launch({}, **flags)
    with pytest.raises(UsageError, match="PMI started 2 processes, but gives no address"):
        launch({"PMI_SIZE": "2", "PMI_RANK": "0"})


def test_first_hosts_of_lists() -> None:
    names = {"a": "a", "a,b": "a", "n[3,5]": "n3", "n[03-12],m": "n03", "r1-n[1-2]-ib": "r1-n1-ib"}
    assert {nodes: first_host(nodes) for nodes in names} == names


def test_a_process_whose_flags_are_wrong_finds_the_others_all_the_same() -> None:
    here = "--address=127.0.0.1:9"
    for words, expected in (
        (("--bogus", "--num_nodes=3", "--task-id", "1", here), Launch(3, 1, "127.0.0.1:9", 1)),
        (("--num_nodes=3", "--task_id=5", here), Launch(3, 5, "127.0.0.1:9")),
        (("--num_nodes=3", "--task_id=x", here), Launch(3, -1, "127.0.0.1:9")),
        (("--num_nodes=3", "--task_id=1", "--address=here"), None),
        (("--num_nodes=x", "--task_id=1", here), None),
        (("m.hlo",), None),
    ):
        assert launch_of_failed(FlagsFound.of(words), {}) == expected, words
