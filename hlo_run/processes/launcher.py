"""Read from the environment which of several processes a launcher started, and where process 0 listens.

Known launchers: torchrun and what sets the same variables, Open MPI's mpirun, srun of Slurm, and PMI (MPICH, Intel MPI).
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from hlo_run.errors import UsageError

# Ports for launchers that name none, so that every process of a job finds the same one. Slurm's jobs use the highest 4096.
_FIRST_PORT, _PORTS = 61440, 4096
# Between the ports of two steps of a job, so that they are not those of the next jobs.
_STEP_PORTS = 509
_ADDRESS_HINT = "--address=HOST:PORT, such as 127.0.0.1:12345 if all processes are on this machine"
_ALONE_HINT = "--num_nodes=1 ignores the launcher"


class _Variables(Struct, frozen=True):
    """The variables of a launcher: the number of processes, the own number, and the own number on this machine.

    One of `job` names the job, `step` its part. One of `mark` is there too if the launcher has general names. `here` is the
    number of processes on this machine. With `both`, a launcher that sets the number or the count sets the other as well.
    """

    launcher: str
    count: str
    number: str
    local_number: tuple[str, ...]
    job: tuple[str, ...] = ()
    step: str = ""
    mark: tuple[str, ...] = ()
    here: str = ""
    both: bool = True


_LAUNCHERS = (
    _Variables("torchrun", "WORLD_SIZE", "RANK", ("LOCAL_RANK",), mark=("MASTER_ADDR", "MASTER_PORT")),
    _Variables(
        *("Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_LOCAL_RANK",)),
        job=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
        here="OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    # Before Slurm: in its jobs mpiexec starts one task per machine, which starts the processes.
    _Variables(
        *("PMI", "PMI_SIZE", "PMI_RANK", ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID")),
        job=("PMI_JOBID", "I_MPI_HYDRA_UUID", "SLURM_JOB_ID"),
        here="MPI_LOCALNRANKS",
    ),
    # A batch script has the variables of the job; only what srun starts has those of a step.
    _Variables(
        "Slurm", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", ("SLURM_LOCALID",), ("SLURM_JOB_ID",), "SLURM_STEP_ID", both=False
    ),
)


class Launch(Struct, frozen=True):
    """This process among `count`, which are numbered from 0. `address` is HOST:PORT of process 0; empty: unknown.

    `local_number` counts the processes of this machine. `launcher` is the name of what started them; empty: flags say so.
    """

    count: int = 1
    number: int = 0
    address: str = ""
    local_number: int = 0
    launcher: str = ""


def device_names(process: int, each: int) -> str:
    """Return the names of the devices of a process that has `each` of them: `device 3` or `devices 2 to 3`."""
    first = process * each
    return f"device {first}" if each == 1 else f"devices {first} to {first + each - 1}"


def launch_of(environment: Mapping[str, str]) -> Launch:
    """Return the launch that a launcher's variables describe; a single process without them.

    Raises UsageError for numbers that are none or do not fit each other, and if one of them is missing.
    """
    for variables in _LAUNCHERS:
        if variables.mark and not any(name in environment for name in variables.mark):
            continue  # other programs use such general names too
        missing = [name for name in (variables.count, variables.number) if name not in environment]
        if len(missing) == 2 or (missing and not variables.both):
            continue
        if missing:
            message = f"{variables.launcher}'s variable {missing[0]} is missing, but its others are there"
            raise UsageError(message, hint=_ALONE_HINT)
        count, number = (_integer(environment, name) for name in (variables.count, variables.number))
        if not 0 <= number < count:
            message = (
                f"{variables.number}={number} and {variables.count}={count}: the processes are numbered from 0 to {count - 1}"
            )
            raise UsageError(message, hint=_ALONE_HINT)
        if count > 1:
            local = next((_integer(environment, name) for name in variables.local_number if name in environment), 0)
            return Launch(count, number, _address(environment, variables, count), local, variables.launcher)
    return Launch()


class LaunchFlags(Protocol):
    """The flags that tell the number of this process."""

    @property
    def num_nodes(self) -> int:
        """The number of processes; 0: the launcher tells."""
        ...

    @property
    def task_id(self) -> int:
        """The number of this process; -1: the launcher tells."""
        ...

    @property
    def address(self) -> str:
        """HOST:PORT of process 0; empty: the launcher tells."""
        ...


class SharingFlags(LaunchFlags, Protocol):
    """The flags that a process needs to reach the others."""

    @property
    def secret_file(self) -> str:
        """The file with the secret of the run; empty: the environment's, else the user's own."""
        ...


class FlagsFound(Struct, frozen=True):
    """The launch flags of a command line that has errors in other flags."""

    num_nodes: int = 0
    task_id: int = -1
    address: str = ""
    secret_file: str = ""

    @staticmethod
    def of(arguments: Sequence[str]) -> FlagsFound:
        """Find the flags in a command line that could not be read. The last flag of each name counts, and none with errors."""
        words = re.findall(r"^--?(num[-_]nodes|task[-_]id|address|secret[-_]file)[=\n](.*)$", "\n".join(arguments), re.MULTILINE)
        texts = {name.replace("-", "_"): text for name, text in words}
        numbers = {name: int(texts[name]) for name in ("num_nodes", "task_id") if texts.get(name, "").isdecimal()}
        return FlagsFound(**numbers, address=texts.get("address", ""), secret_file=texts.get("secret_file", ""))


def launch_of_failed(flags: LaunchFlags, environment: Mapping[str, str] = os.environ) -> Launch | None:
    """Return the launch of a process that has failed, perhaps by these flags; None: it has no others, or cannot reach them.

    The number is that of the flag, which may be wrong (-1: unknown).
    """
    try:
        launch = launch_of_flags(flags, environment)
    except UsageError:
        launch = Launch(flags.num_nodes, flags.task_id, flags.address)
    if launch.count < 2:
        return None
    try:
        split_address(launch.address)
    except UsageError:
        return None
    return launch


def launch_of_flags(flags: LaunchFlags, environment: Mapping[str, str] = os.environ) -> Launch:
    """Return the launch that flags describe, with a launcher's variables where the flags give nothing.

    Raises UsageError for a number that is not one of the processes, and for an unknown address.
    """
    count, number, address = flags.num_nodes, flags.task_id, flags.address
    found = Launch()
    if count != 1:
        try:
            found = launch_of(environment)
        except UsageError:
            if not (count and number >= 0 and address):
                raise
    count = count or found.count
    if count == 1:
        if number > 0:
            raise UsageError(f"--task_id={number} needs --num_nodes, the number of processes")
        if address and not flags.num_nodes:
            raise UsageError(f"--address={address} needs --num_nodes, the number of processes")
        return Launch()
    is_launched = found.count == count
    if number < 0:
        if not is_launched:
            raise UsageError(f"--num_nodes={count} needs --task_id, the number of this process from 0 to {count - 1}")
        number = found.number
    if number >= count:
        raise UsageError(f"--task_id={number}: the processes are numbered from 0 to {count - 1}")
    address = address or (found.address if is_launched else "")
    if not address:
        started = f"{found.launcher} started {count} processes, but gives no address" if is_launched else f"--num_nodes={count}"
        raise UsageError(f"{started}: where process 0 listens is unknown", hint=_ADDRESS_HINT)
    split_address(address)
    if is_launched and number == found.number:
        return Launch(count, number, address, found.local_number, found.launcher)
    return Launch(count, number, address, number)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT or [IPv6]:PORT. Raises UsageError."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]\s]+)):(\d+)", address)
    if found is None or int(found[3]) > 0xFFFF:
        raise UsageError(f"the address {address} is not HOST:PORT", hint="for example 127.0.0.1:12345 or [::1]:12345")
    return found[1] or found[2], int(found[3])


def first_host(nodes: str) -> str:
    """Return the first name of a list of Slurm: `node[003-005,9],other` has the first name `node003`."""
    found = re.match(r"([^,\[\]]*)(?:\[(\d+)[^\]]*\])?([^,\[\]]*)", nodes)
    return "".join(part or "" for part in found.groups()) if found is not None else ""


def _integer(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise UsageError(f"the environment variable {name}={environment[name]!r} is not a number") from None


def _address(environment: Mapping[str, str], variables: _Variables, count: int) -> str:
    """Return where process 0 listens: by MASTER_ADDR and MASTER_PORT, else on the first machine, at a port made of the job.

    If all processes are on one machine, process 0 listens there for no other.
    """
    job = next((environment[name] for name in variables.job if environment.get(name)), "")
    port = _integer(environment, "MASTER_PORT") if "MASTER_PORT" in environment else 0
    if port and environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port += 1  # the agent of torchrun listens at the port itself
    if not port and job:
        step = _integer(environment, variables.step) if variables.step in environment else 0
        port = _FIRST_PORT + ((int(job) if job.isdecimal() else zlib.crc32(job.encode())) + step * _STEP_PORTS) % _PORTS
    host = environment.get("MASTER_ADDR", "")
    is_step = variables.launcher == "Slurm"  # a step that an MPI launcher makes need not have all machines
    if not host and (
        environment.get(variables.here) == str(count) or (is_step and environment.get("SLURM_STEP_NUM_NODES") == "1")
    ):
        host = "127.0.0.1"
    if not host:
        lists = ("SLURM_STEP_NODELIST",) * is_step + ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
        host = first_host(next((environment[name] for name in lists if name in environment), ""))
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}" if host and port else ""
