"""Runs a program on ranks of several hosts that talk over a slow wire, all on this machine: see README.md.

python benchmarks/emulated_hosts.py benchmarks/overlap.py
python benchmarks/emulated_hosts.py --hosts 4 --ranks 4 benchmarks/steps.py

Needs Linux, root, the command ip (package iproute2) and /dev/net/tun. The hosts are network namespaces; ranks of one
host share memory, where there are several. This process is the wire: it carries the packets from host to host, each
after the time that it would have taken. So the kernel's own emulation (netem) is not needed, which many kernels lack.
What it sets up is gone when it ends.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, process_time

TUN = Path("/dev/net/tun")
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # linux/if_tun.h
LARGEST_PACKET = 65000  # as network cards take them that cut them up by themselves
LAST_OF_ADDRESS = 19  # the byte of a packet (IPv4) with the last number of the address that it goes to
DEVICE = "wire"
ROUND_TRIPS = Path(__file__).with_name("round_trips.py")
MPI_OVER_TCP = {
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": DEVICE,
    "OMP_NUM_THREADS": "1",
}


def variables(hosts: int, ranks: int) -> dict[str, str]:
    """What tells MPI and the package which ranks are on one host, as the names of all hosts are the same."""
    apart = {"MPIR_CVAR_NOLOCAL": "1"}  # no shared memory
    together = {"MPIR_CVAR_NUM_CLIQUES": str(hosts), "MPIR_CVAR_CLIQUES_BY_BLOCK": "1"}
    return {**MPI_OVER_TCP, **(apart if ranks == 1 else together), "DISTDL_HOSTS": str(ranks)}


class Wire:
    """What a host sends: packets leave one after the other at its rate, and each arrives after the delay."""

    def __init__(self, source: int, targets: list[int], delay: float, bits_per_second: float) -> None:
        self.source, self.targets = source, targets
        self.delay, self.bits_per_second = delay, bits_per_second
        self.free_at = 0.0  # when the last packet has left
        self.travelling: deque[tuple[float, bytes]] = deque()  # when each arrives

    def accept(self) -> None:
        """Take all packets that wait to be sent."""
        try:
            while True:
                packet = os.read(self.source, LARGEST_PACKET)
                self.free_at = max(self.free_at, monotonic()) + 8 * len(packet) / self.bits_per_second
                self.travelling.append((self.free_at + self.delay, packet))
        except BlockingIOError:
            pass

    def deliver(self) -> None:
        """Hand over the packets whose time has come, each to the host of its address."""
        while self.travelling and self.travelling[0][0] <= monotonic():
            packet = self.travelling.popleft()[1]
            host = packet[LAST_OF_ADDRESS] - 1 if packet[0] >> 4 == 4 else len(self.targets)
            if host < len(self.targets):
                os.write(self.targets[host], packet)

    def seconds_to_next(self) -> float:
        """Until the next packet arrives."""
        return max(0.0, self.travelling[0][0] - monotonic()) if self.travelling else float("inf")


def main() -> None:
    """Set the hosts up, run the program, and be their wire as long as it runs."""
    options = arguments()
    check_requirements()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # cleans up on its way
    with ExitStack() as stack:
        hosts = [stack.enter_context(host(number)) for number in range(options.hosts)]
        ends = [end for _, end in hosts]
        wires = [Wire(end, ends, options.delay / 1000, options.rate * 1e9) for end in ends]
        command = [word for name, _ in hosts for word in (*on_host(name, options), ":")][:-1]
        job = stack.enter_context(running(["mpiexec", *command], variables(options.hosts, options.ranks)))
        os.setpriority(os.PRIO_PROCESS, 0, -20)  # a wire does not wait for a processor
        start = monotonic()
        while job.poll() is None:
            ready, _, _ = select.select(ends, [], [], min(0.1, *(wire.seconds_to_next() for wire in wires)))
            for wire in wires:
                if wire.source in ready:
                    wire.accept()
                wire.deliver()
        print(f"The wire took {process_time() / (monotonic() - start):.0%} of a core.")

    raise SystemExit(job.returncode)


def on_host(name: str, options: argparse.Namespace) -> list[str]:
    """The ranks of a host, for mpiexec."""
    return [
        "-n",
        str(options.ranks),
        "ip",
        "netns",
        "exec",
        name,
        sys.executable,
        "-m",
        "mpi4py",
        options.program,
        *options.arguments,
    ]


@contextmanager
def host(number: int) -> Iterator[tuple[str, int]]:
    """A network namespace with an end of the wire: its name, and the file that the other side of this end is."""
    name = f"distdl-{os.getpid()}-{number}"
    device = f"{DEVICE}{os.getpid()}{number}"
    end = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
        ip("netns", "add", name)
        try:
            ip("link", "set", device, "netns", name, "name", DEVICE, "mtu", str(LARGEST_PACKET))
            ip("-n", name, "address", "add", f"10.77.0.{number + 1}/24", "dev", DEVICE)
            for interface in ("lo", DEVICE):
                ip("-n", name, "link", "set", interface, "up")
            yield name, end
        finally:
            ip("netns", "delete", name)
    finally:
        os.close(end)  # with which the device is gone


@contextmanager
def running(command: list[str], variables: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process with MPI over TCP, which is ended if it has not."""
    with subprocess.Popen(command, env={**os.environ, **variables}) as job:
        try:
            yield job
        finally:
            job.terminate()


def ip(*words: str) -> None:
    """Run ip. Raises RuntimeError with what it says."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def check_requirements() -> None:
    """Exit with all that is missing."""
    missing = []
    if os.geteuid() != 0:
        missing.append("root, who alone may make network namespaces")
    missing += [f"the command {name} ({source})" for name, source in (("ip", "iproute2"), ("mpiexec", "MPI"))
                if not shutil.which(name)]  # fmt: skip
    if not TUN.exists():
        missing.append(f"{TUN}, the kernel's TUN devices (CONFIG_TUN)")
    if missing:
        raise SystemExit(f"emulated_hosts.py needs {'; '.join(missing)}")


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=1, help="on each host (default: %(default)s)")
    parser.add_argument("--delay", type=float, default=1.0, metavar="MS", help="one way (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=1.0, metavar="GBIT/S", help="each way (default: %(default)s)")
    parser.add_argument("program", nargs="?", default=str(ROUND_TRIPS), help="what ranks run (default: round_trips.py)")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    return parser.parse_args()


if __name__ == "__main__":
    main()
