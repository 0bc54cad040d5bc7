"""Flower's processes on this machine: the SuperLink of a server and the SuperNode of a node, as one starts them."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from fedrec.data.atomic import atomic_file, make_private_file, make_private_folder
from fedrec.deploy.extra import require
from fedrec.deploy.key_files import require_server
from fedrec.deploy.keys import make_server_keys
from fedrec.deploy.processes import Processes
from fedrec.errors import FedrecError
from fedrec.experiment.command_line import command_line

CONNECTION = "fedrec"
PATIENCE = 600.0  # seconds for a SuperLink that runs to answer, and for a command of Flower's: minutes where it is busy
LOG = "node.log"
UNCONNECTED, NOT_ADMITTED = "305", "[code: 2004]"  # what Flower says of a SuperNode that reaches no SuperLink, and why
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}
"""Environment of Flower's processes: no telemetry, no update check (two hosts of Flower's), both on by default.

The poll of 0.2 s is five times finer than the default; 0.05 s would cost more processor time than it saves."""
APP = """\
[project]
name = "fedrec-app"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "fedrec"

[tool.flwr.app.components]
serverapp = "fedrec.deploy.flower_app:server_app"
clientapp = "fedrec.deploy.flower_app:client_app"

[tool.flwr.app.config]
job = ""
"""


def environment(home: Path, more: dict[str, str] | None = None) -> dict[str, str]:
    """Make the environment of Flower's processes: programs beside this Python, and a home of their own."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    # A home of its own, so that connections which the user has set up for other federations stay as they are.
    return {**os.environ, **QUIET, "PATH": path, "FLWR_HOME": str(home.resolve()), **(more or {})}


def require_flower() -> None:
    require("flwr")


@dataclass(frozen=True)
class Certificates:
    """Files of a server: its certificate and key, and the authority that signed them."""

    folder: Path

    def require_sound(self) -> None:
        names = ("ca.crt", "server.crt", "server.key")
        for name in names:
            self.file(name)
        require_server(*(self.folder / name for name in names))

    def file(self, name: str) -> str:
        path = self.folder / name
        if not path.is_file():
            make = command_line("deploy", "keys", "server", self.folder, "--host", "NAME")
            raise FedrecError(f"there is no {path}; make certificates with: {make}")
        return str(path.resolve())


class SuperLink:
    """A server's end of Flower, with a home of its own so that nobody's settings are touched.

    It listens on loopback, where the operator's commands go with a certificate of its own; what nodes may ask for is
    passed on from the port that others can reach (`flower_gate`).
    """

    def __init__(
        self, home: Path, certificates: Certificates, host: str, port: int, nodes: Path, processes: Processes
    ) -> None:
        """`nodes`: the folder with the public keys of those that may be nodes."""
        require_flower()
        self.home, self.certificates, self.host, self.port = home, certificates, host, port
        self.nodes, self.processes = nodes, processes
        self.registered: set[str] = set()
        make_private_folder(home)

    @property
    def env(self) -> dict[str, str]:
        return environment(self.home)

    @property
    def address(self) -> str:
        here = "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host
        return f"{here}:{self.port}"

    def start(self) -> None:
        # Inside it listens on any free port of loopback: Flower's operator interface must not be reachable.
        inside, private = f"127.0.0.1:{free_port()}", Certificates(self.home / "loopback")
        if not private.folder.exists():
            make_server_keys(private.folder, ["127.0.0.1"])
        config = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{inside}"\n'
        config += f"root-certificates = {json.dumps(private.file('ca.crt'))}\n"
        (self.home / "config.toml").write_text(config, encoding="utf-8")
        (self.home / "app").mkdir(exist_ok=True)
        (self.home / "app" / "pyproject.toml").write_text(APP, encoding="utf-8")
        database = self.home.resolve() / "state.db"
        # What Flower writes beside it gets the same permissions.
        make_private_file(database)
        public = [self.certificates.file(name) for name in ("server.crt", "server.key")]
        outside = [self.host, str(self.port), *public, str(self.nodes.resolve())]
        self.process = self.processes.start(
            [sys.executable, "-m", "fedrec.deploy.flower_gate", *outside, *_link_options(inside, private, database)],
            self.env,
            self.home / "superlink.log",
        )
        self._await_health()

    def _await_health(self) -> None:
        """Wait until the SuperLink answers; `flwr run` fails against one that is still starting."""
        context = ssl.create_default_context(cafile=self.certificates.file("ca.crt"))
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"https://{self.address}/health", timeout=30, context=context):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise FedrecError(
            f"the SuperLink did not start; its log is {self.home / 'superlink.log'}: "
            f"{last_line(self.home / 'superlink.log')}"
        )

    def register(self, key: Path) -> bool:
        """Admit the node with this public key; return whether it is new."""
        content = key.read_text(encoding="utf-8", errors="replace")
        if content in self.registered:
            return False
        try:
            self._flwr("supernode", "register", str(key), CONNECTION)
        except FedrecError as error:
            # A SuperLink of the same home has admitted this key before it was restarted.
            if "already in use" not in str(error):
                raise
        self.registered.add(content)
        return True

    def run(self, job: Path) -> None:
        """Start the server's work as a run of Flower."""
        # Quoted as JSON, which is valid TOML too: a path may contain blanks and quotation marks.
        quoted = json.dumps(str(job.resolve()))
        self._flwr("run", str(self.home / "app"), CONNECTION, "--run-config", f"job={quoted}")

    def _flwr(self, *words: str) -> str:
        what = f"flwr {' '.join(words[:2])}"
        try:
            done = subprocess.run(
                [_program("flwr"), *words], env=self.env, capture_output=True, text=True, timeout=PATIENCE
            )
        except subprocess.TimeoutExpired:
            raise FedrecError(f"{what} did not end within {PATIENCE:g} s; is this machine overloaded?") from None
        if done.returncode:
            # The end of the output, where programs put the reason; the whole would bury it.
            raise FedrecError(f"{what} failed: {' '.join((done.stderr or done.stdout).split())[-400:]}")
        return done.stdout


def _link_options(address: str, certificates: Certificates, database: Path) -> list[str]:
    host, _, port = address.partition(":")
    files = {"--ssl-certfile": "server.crt", "--ssl-keyfile": "server.key", "--ssl-ca-certfile": "ca.crt"}
    return [
        *("--host", host, "--port", port),
        *(word for option, name in files.items() for word in (option, certificates.file(name))),
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        *("--database", str(database)),
    ]


@dataclass(frozen=True)
class Joining:
    """What a node needs to reach a server: its address, the authority that signed its certificate, the node's key."""

    superlink: str
    ca: Path
    key: Path
    port: int

    @property
    def local(self) -> str:
        """The address at which the SuperNode gives out its work, on this machine."""
        return f"127.0.0.1:{self.port}"

    def secret(self, state: Path) -> Path:
        """The file with what a worker proves itself by to the SuperNode."""
        path = state / "flower" / "worker.secret"
        if not path.exists():
            # The folder comes first and is private, so that the secret is at no moment readable by others.
            make_private_folder(path.parent)
            with atomic_file(path, private=True) as temporary:
                temporary.write_bytes(secrets.token_bytes(32))
        return path

    def super_node(self, state: Path, processes: Processes, env: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start a SuperNode for a state folder, which also gets its log. It carries messages and runs nothing."""
        home = state / "flower"
        make_private_folder(home)
        return processes.start(
            [
                _program("flower-supernode"),
                "--superlink",
                self.superlink,
                "--root-certificates",
                str(self.ca),
                "--auth-supernode-private-key",
                str(self.key),
                "--host",
                "127.0.0.1",
                "--port",
                str(self.port),
                "--isolation",
                "process",
                "--superexec-auth-secret-file",
                str(self.secret(state).resolve()),
            ],
            environment(home, env),
            state / LOG,
        )


def free_port() -> int:
    with socket.socket() as probe:
        # The system chooses; another program could take the port before it is used, which then fails with a clear line.
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def require_free(host: str, port: int) -> None:
    """Refuse an address at which a server cannot listen."""
    try:
        with socket.create_server((host, port)):
            pass
    except (OSError, OverflowError) as error:
        raise FedrecError(
            f"cannot listen at {host}:{port} ({error.args[-1]}); choose another --host or --port"
        ) from None


def last_line(log: Path) -> str:
    """Return the last line of a log, for a message."""
    # Cut, because a log line of Flower may hold a whole traceback.
    return next((line for line in reversed(_lines(log))), "(no log)")[:300]


def reason_in(log: Path, begin: int = 0) -> str:
    """Why a SuperNode whose log begins there has ended: in words where they are known, otherwise as Flower says it."""
    lines = _lines(log, begin)
    told = [k for k, line in enumerate(lines) if "Exit Code" in line]
    if not told:
        errors = [line for line in lines if "[code:" in line or "rror" in line]
        return (errors or lines or ["(no log)"])[-1][:300]
    code = lines[told[-1]].rpartition(" ")[2]
    explained = [line for line in lines[told[-1] + 1 :] if not line.startswith("For more information")][:2]
    if any(NOT_ADMITTED in line for line in explained):
        return "the server has not admitted this node yet (it needs its public key; one that broke off waits a minute)"
    if code == UNCONNECTED:
        return f"cannot connect to the server: {' '.join(explained[1:])}"[:300]
    return " ".join([f"Flower's exit code {code}:", *explained])[:300]


def _lines(log: Path, begin: int = 0) -> list[str]:
    """Read the lines of a log, without colours and without empty ones."""
    try:
        # From an offset: errors of an earlier start in the same log are not the reason for this end.
        text = log.read_bytes()[begin:].decode("utf-8", errors="replace")
    except OSError:
        return []
    return [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if line.strip()]


def _program(name: str) -> str:
    # Beside this Python first: another environment's Flower on the path may be of another version.
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise FedrecError(f"{name} is not installed; install it with: pip install 'fedrec[flower]'")
    return found
