"""Docker and podman of Debian's packages, unpacked into a folder and started from there; nothing is installed."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CDLL, get_errno
from pathlib import Path

from tests.eventually import until

PACKAGES = [
    *("docker.io", "containerd", "runc", "tini", "iptables", "libip4tc2", "libip6tc2", "libxtables12", "libnftnl11"),
    *("libnetfilter-conntrack3", "libnfnetlink0", "podman", "conmon", "catatonit", "netavark", "aardvark-dns"),
    *(
        "golang-github-containers-common",
        "libgpgme11",
        "libassuan0",
        "libsubid4",
        "libseccomp2",
        "libdevmapper1.02.1",
        "mmdebstrap",
    ),
]
IMAGE = ["ca-certificates", "libnuma1", "python-is-python3", "python3-venv", "prometheus", "redis-server"]
"""What the images of others are made of."""


def missing() -> str:
    """Return what this machine lacks; empty if the tests can run."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "containers are tested as root on Linux"
    tools = [tool for tool in ("apt-get", "curl", "dpkg", "docker-compose", "ip", "tar") if shutil.which(tool) is None]
    if tools:
        return f"containers are tested on Debian with {', '.join(tools)}, which this machine lacks"
    if "overlay" not in Path("/proc/filesystems").read_text():
        return "containers are tested on a kernel with overlayfs"
    if not Path(".venv-engine/.installed").exists():
        return "containers are tested with .venv-engine: run make engine"
    return ""


def run(*command: str | Path, **options: object) -> str:
    """Return what a command prints. Raises AssertionError with all that it printed."""
    done = subprocess.run([*map(str, command)], text=True, capture_output=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return str(done.stdout)


class Machine:
    """The unpacked programs, and a network namespace for containers. Everything lies below `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)  # apt's own user reads below it
        self.folder = folder
        self.namespace = folder.name
        programs, packages = folder / "programs", folder / "packages"
        packages.mkdir()
        run("apt-get", "download", *PACKAGES, cwd=packages)
        for package in packages.glob("*.deb"):
            run("dpkg", "-x", package, programs)
        shutil.rmtree(packages)
        for name in ("iptables", "ip6tables"):
            (programs / "usr/sbin" / name).symlink_to(f"{name}-legacy")
        libraries = programs / "usr/lib/x86_64-linux-gnu"
        home = folder / "home"
        self.environment = {
            **os.environ,
            "PATH": f"{programs}/usr/sbin:{programs}/usr/bin:{programs}/sbin:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": f"{libraries}:{programs}/lib/x86_64-linux-gnu",
            "XTABLES_LIBDIR": f"{libraries}/xtables",
            "HOME": str(home),
            "TMPDIR": str(folder),
            "DOCKER_HOST": f"unix://{folder}/docker.sock",
            "DOCKER_BUILDKIT": "1",
            "CONTAINERS_CONF": f"{home}/containers.conf",
            "CONTAINERS_STORAGE_CONF": f"{home}/storage.conf",
            "CONTAINERS_REGISTRIES_CONF": f"{home}/registries.conf",
        }
        self._settings(home, programs)
        run("ip", "netns", "add", self.namespace)
        run("ip", "-netns", self.namespace, "link", "set", "lo", "up")

    def _settings(self, home: Path, programs: Path) -> None:
        """Write podman's: the paths of its programs, and no limit above this machine's own."""
        (home / ".config/containers").mkdir(parents=True)
        (home / ".config/containers/policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        (home / "registries.conf").write_text("unqualified-search-registries = []\n")
        storage = {"driver": "overlay", "graphroot": f"{self.folder}/podman", "runroot": f"{self.folder}/podman-run"}
        (home / "storage.conf").write_text("[storage]\n" + "".join(f'{name} = "{value}"\n' for name, value in storage.items()))
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        (home / "containers.conf").write_text(
            f"""[containers]
default_ulimits = ["nofile={files}:{files}", "nproc=8192:8192"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
conmon_path = ["{programs}/usr/bin/conmon"]
helper_binaries_dir = ["{programs}/usr/lib/podman", "{programs}/usr/bin"]
runtime = "runc"
lock_type = "file"
tmp_dir = "{self.folder}/podman-tmp"
[engine.runtimes]
runc = ["{programs}/usr/sbin/runc"]
[network]
network_backend = "netavark"
network_config_dir = "{home}/networks"
"""
        )

    def run(self, *command: str | Path, **options: object) -> str:
        """Return what a command prints that may be one of the unpacked programs'."""
        return run(*command, env=self.environment, **options)

    @contextmanager
    def dockerd(self, *, own_network: bool) -> Iterator[None]:
        """Run Docker's daemon: on the host's network for builds, which fetch packages; on `enter`'s for containers."""
        network = ["--bip=10.231.0.1/24", "--default-address-pool=base=10.232.0.0/16,size=24"]
        command = [
            *("dockerd", f"--data-root={self.folder}/docker", f"--exec-root={self.folder}/docker-run"),
            *(f"--host={self.environment['DOCKER_HOST']}", f"--pidfile={self.folder}/docker.pid"),
            f"--cgroup-parent={self.namespace}",
            *(network if own_network else ["--bridge=none", "--iptables=false", "--ip-forward=false"]),
        ]
        log = self.folder / "docker.log"
        with log.open("ab") as file:
            daemon = subprocess.Popen(command, env=self.environment, stdout=file, stderr=file)
        try:
            ready = ["docker", "info"]
            asked = {"env": self.environment, "capture_output": True}
            until(lambda: daemon.poll() is not None or subprocess.run(ready, **asked).returncode == 0)  # type: ignore[call-overload]
            assert daemon.poll() is None, log.read_text()[-4000:]
            yield
        finally:
            daemon.terminate()
            daemon.wait(60)

    def enter(self) -> None:
        """Move this thread to the containers' network, for good."""
        with Path("/run/netns", self.namespace).open() as file:
            libc = CDLL(None, use_errno=True)
            assert libc.setns(file.fileno(), 0) == 0, os.strerror(get_errno())

    def remove(self) -> None:
        """Leave nothing behind. Docker must have ended."""
        subprocess.run(["podman", "system", "reset", "--force"], env=self.environment, capture_output=True)
        subprocess.run(["ip", "netns", "delete", self.namespace])
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in reversed([mount for mount in mounts if mount.startswith(f"{self.folder}/")]):
            run("umount", "--lazy", mount)
        for group in Path("/sys/fs/cgroup").glob(f"**/{self.namespace}"):
            for below in sorted(group.rglob("*/"), reverse=True):
                below.rmdir()
            group.rmdir()
        shutil.rmtree(self.folder)


def pip_settings() -> str:
    """Return a pip.conf for images: this machine's indexes. Certificates are for deploy/image/authorities."""
    listed = (row.partition("=") for row in run(sys.executable, "-m", "pip", "config", "list").splitlines())
    settings = {name.split(".", 1)[1]: value.strip("'") for name, _, value in listed}
    general = {"index-url", "extra-index-url", "default-timeout"}
    kept = [f"{name} = {value}" for name, value in settings.items() if name in general and "file:" not in value]
    return "\n".join(["[global]", *kept, ""])


def ended(machine: Machine, container: str) -> int:
    """Return a stopped container's exit code."""
    (found,) = json.loads(machine.run("docker", "inspect", container))
    assert found["State"]["Status"] == "exited"
    return int(found["State"]["ExitCode"])
