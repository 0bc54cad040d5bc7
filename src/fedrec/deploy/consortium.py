"""A consortium of companies: what its server and each member need, as one folder each to hand over."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrec.data.atomic import atomic_file, make_private_folder
from fedrec.deploy.keys import make_node_key, make_server_keys
from fedrec.deploy.services import make_terms
from fedrec.errors import FedrecError
from fedrec.experiment.config import make_config

SERVER, NODE = "server.toml", "node.toml"
DATA = "interactions.csv"  # where a member puts its own rows
FEWEST = 2  # members of a secure sum: with one, the sum would be its update

UNIT = """[Unit]
Description=fedrec, {what}
Wants=network-online.target
After=network-online.target

[Service]
User=fedrec
WorkingDirectory={place}
ExecStart={program} deploy start {place}/{settings}
Restart=on-failure
RestartSec=30
KillMode=mixed
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={place}

[Install]
WantedBy=multi-user.target
"""

COMPOSE = """services:
  fedrec:
    image: fedrec  # Python 3.11 with pip install 'fedrec[flower,serve]' and ENTRYPOINT ["fedrec"]
    command: ["deploy", "start", "/data/{settings}"]
    volumes: ["./:/data"]
{more}    restart: on-failure
"""


@dataclass(frozen=True)
class Consortium:
    """What has to be agreed on before anybody starts."""

    members: tuple[str, ...]
    host: str
    """The name or address by which members reach the server."""
    items: Path
    method: str
    port: int = 8000
    rounds: int | None = None
    clients: int = 100_000
    silo: bool = False
    secure: bool | None = None
    program: str = "/opt/fedrec/bin/fedrec"
    place: str = "/var/lib/fedrec"
    """The folder on a machine where its part is put."""

    @property
    def enough(self) -> int:
        """Members without whom a round is repeated: one of them may be away, but a sum has at least two."""
        return min(len(self.members), max(FEWEST, len(self.members) - 1))

    def require_sound(self) -> int:
        """Check the answers, and return the number of items."""
        names = [name for name in self.members if not name or not name.replace("-", "").replace("_", "").isalnum()]
        if names:
            raise FedrecError(f"'{names[0]}' cannot be a folder: use letters, digits, - and _ in names of members")
        if len(set(self.members)) < len(self.members) or "server" in self.members:
            raise FedrecError("every member needs a name of its own, and none may be called server")
        if len(self.members) < FEWEST:
            raise FedrecError("a consortium has at least two members: separate their names by commas")
        asked = {"method": self.method, "data": "federation", "rounds": self.rounds}
        config = make_config({name: value for name, value in asked.items() if value is not None})
        return len(make_terms(config, self.items, self.clients, self.secure, self.enough)[0].items)


def write_consortium(consortium: Consortium, folder: Path) -> list[Path]:
    """Write a folder for the server and one for each member; return them."""
    consortium.require_sound()
    # Never into a folder in use: keys that were handed over already would be overwritten.
    if folder.exists() and any(folder.iterdir()):
        raise FedrecError(f"{folder} is not empty; choose another folder")
    server, places = folder / "server", [folder / name for name in consortium.members]
    make_private_folder(folder)
    # The server also speaks to itself by its loopback address, which the certificate must name.
    make_server_keys(server / "keys", [consortium.host, *({"127.0.0.1"} - {consortium.host})])
    (server / "nodes").mkdir()
    shutil.copyfile(consortium.items, server / "items.csv")
    for place in places:
        public = make_node_key(place / "node.key")
        shutil.copyfile(public, server / "nodes" / f"{place.name}.pub")
        for name, origin in (("ca.crt", server / "keys" / "ca.crt"), ("items.csv", consortium.items)):
            shutil.copyfile(origin, place / name)
    # A second pass, since every member needs the public keys of all others, and these exist only now.
    for place in places:
        (place / "peers").mkdir()
        # Private keys stay in the folder of their member; only the public halves are copied.
        for peer in places:
            if peer != place:
                shutil.copyfile(peer / "node.key.pub", place / "peers" / f"{peer.name}.pub")
    _write_toml(server / SERVER, "What this server runs: fedrec deploy start server.toml", _server_settings(consortium))
    _write_services(
        server, SERVER, "the server of a federation", consortium, f'    ports: ["{consortium.port}:8000"]\n'
    )
    for place in places:
        _write_toml(
            place / NODE, f"Put your rows into {DATA}, then: fedrec deploy start node.toml", _node_settings(consortium)
        )
        consent = {"methods": [consortium.method], "members": consortium.enough}
        _write_toml(place / "consent.toml", "What this member agrees to; anything else is refused", consent)
        _write_services(place, NODE, f"the node of {place.name}", consortium, "")
    return [server, *places]


def read_start(path: Path) -> list[str]:
    """Read the words of `fedrec deploy` from a file of settings, whose name says whose it is."""
    import tomllib

    role = {SERVER: "server", NODE: "node"}.get(path.name)
    if role is None:
        raise FedrecError(f"{path} is neither {SERVER} nor {NODE}; fedrec deploy init writes both")
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FedrecError(f"cannot read {path}: {error}") from None
    words = [role]
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list) else [value]:
            words += [] if one is False else [flag] if one is True else [flag, str(one)]
    return words


def _server_settings(consortium: Consortium) -> dict[str, Any]:
    values: dict[str, Any] = {
        "method": consortium.method,
        "rounds": consortium.rounds,
        "items": "items.csv",
        "clients": consortium.clients,
        "keys": "keys",
        "nodes": "nodes",
        "host": "0.0.0.0",
        "port": consortium.port,
        "min_nodes": consortium.enough,
        "first_nodes": len(consortium.members),
        "secure_sums": consortium.secure or None,
        "open_sums": True if consortium.secure is False else None,
        "out": "run",
        "resume": True,
    }
    return {name: value for name, value in values.items() if value is not None}


def _node_settings(consortium: Consortium) -> dict[str, Any]:
    values: dict[str, Any] = {
        "superlink": f"{consortium.host}:{consortium.port}",
        "data": DATA,
        "state_dir": "state",
        "ca": "ca.crt",
        "key": "node.key",
        "items": "items.csv",
        "peers": "peers",
        "consent": "consent.toml",
        "silo": consortium.silo,
        "yes": True,
    }
    return values


def _write_toml(path: Path, about: str, values: Mapping[str, Any]) -> None:
    import tomli_w

    with atomic_file(path) as temporary:
        temporary.write_text(f"# {about}\n{tomli_w.dumps(values)}", encoding="utf-8")


def _write_services(place: Path, settings: str, what: str, consortium: Consortium, more: str) -> None:
    """Write a unit for systemd and a compose file, of which a machine needs one."""
    unit = UNIT.format(what=what, place=consortium.place, program=consortium.program, settings=settings)
    (place / f"fedrec-{settings.removesuffix('.toml')}.service").write_text(unit, encoding="utf-8")
    (place / "compose.yaml").write_text(COMPOSE.format(settings=settings, more=more), encoding="utf-8")


def ask_for(question: str, given: Any, ask: Any, interactive: bool) -> Any:
    """Return an answer that was given, or ask for it where somebody can answer."""
    if given is not None:
        return given
    if not interactive:
        raise FedrecError(f"{question}? Give it as a flag, or run this on a terminal")
    return ask(question)


def names_of(text: str | Sequence[str]) -> tuple[str, ...]:
    """Split the names of members."""
    return tuple(name.strip() for name in (text.split(",") if isinstance(text, str) else text))
