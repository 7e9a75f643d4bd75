"""What a command may do: a sandbox as a value, with the words of the command line (docs/sandbox.md)."""

from __future__ import annotations

import asyncio
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from . import _wire as wire
from ._errors import NotADirectoryError, NotFoundError, RpcError, UnsupportedError, shown
from ._guards import is_texts
from ._paths import native, uri

if TYPE_CHECKING:
    from ._core import Core
    from ._files import Files

_WILDCARDS = "*?[{"
_ESCAPED = str.maketrans({c: "\\" + c for c in "\\*?[]{}"})
_MAX_PROFILE = 64 << 10
_MAX_PROFILES = 64
_PATIENCE = 24 * 60 * 60 * 1000  # milliseconds of a question about the network: the command gives up earlier
_CORE = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TEMP", "TMP", "TMPDIR", "USER", "TERM")

# The files of a home that are hidden unless somebody names them. Programs replace those of HISTORIES when they end.
# The command line has the same ones.
SECRET_FILES = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".config/gcloud",
    ".config/doctl",
    ".config/hcloud",
    ".config/heroku",
    ".oci",
    ".aliyun",
    ".terraform.d/credentials.tfrc.json",
    ".fly",
    ".kube",
    ".docker/config.json",
    ".config/containers/auth.json",
    ".netrc",
    "_netrc",
    ".pgpass",
    ".my.cnf",
    ".mylogin.cnf",
    ".git-credentials",
    ".config/git/credentials",
    ".config/gh",
    ".config/glab-cli",
    ".config/hub",
    ".npmrc",
    ".yarnrc.yml",
    ".pypirc",
    ".config/pypoetry/auth.toml",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".m2/settings.xml",
    ".m2/settings-security.xml",
    ".gradle/gradle.properties",
    ".composer/auth.json",
    ".config/composer/auth.json",
    ".vault-token",
    ".password-store",
    ".config/op",
    ".config/Bitwarden CLI",
    ".config/rclone",
    ".config/sops/age",
    ".config/age",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".pki",
    ".mozilla",
    ".thunderbird",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".config/vivaldi",
    ".config/opera",
    ".codex/auth.json",
    ".claude/.credentials.json",
    ".config/execagent",
    ".local/share/fish",
    ".local/share/atuin",
    ".local/state/nvim/shada",
    ".rediscli_history",
    ".node_repl_history",
)
HISTORIES = (
    ".bash_history",
    ".zsh_history",
    ".zhistory",
    ".histfile",
    ".sh_history",
    ".ash_history",
    ".local/state/bash/history",
    ".local/state/zsh/history",
    ".config/nushell/history.txt",
    ".psql_history",
    ".mysql_history",
    ".mariadb_history",
    ".sqlite_history",
    ".python_history",
    ".irb_history",
    ".php_history",
    ".lesshst",
    ".local/state/lesshst",
    ".local/share/lesshst",
    ".viminfo",
)

Words = str | Sequence[str]


def _words(value: Words) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


@dataclass(frozen=True, slots=True)
class EnvPolicy:
    """Which variables a command inherits from the agent. ``env`` of the command is added to them.

    ``inherit`` is ``core`` (those that any program needs), ``all`` or ``none``. Names with KEY, SECRET or TOKEN are
    left out, unless ``ignore_default_excludes``. Patterns have * and ?, and compare without case.
    """

    inherit: Literal["core", "all", "none"] = "core"
    ignore_default_excludes: bool = False
    exclude: Sequence[str] = ()
    set: Mapping[str, str] = field(default_factory=lambda: {})
    include_only: Sequence[str] = ()

    def wire(self) -> wire.EnvPolicy:
        """Return the policy in the form of the wire."""
        return {
            "inherit": self.inherit,
            "ignoreDefaultExcludes": self.ignore_default_excludes,
            "exclude": list(_words(self.exclude)),
            "set": dict(self.set),
            "includeOnly": list(_words(self.include_only)),
        }


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """What a command may do. Without any word it may read everything but secrets, write nothing, and has no network.

    The words are the flags of ``agent sandbox``. A word that takes several values takes one text, or a list of them.
    Paths are those of the agent. A relative one begins at the directory of the command, and ``~/`` is the home of the
    agent's user.

    - ``workspace``: it may also write in these directories, in /tmp and in TMPDIR
    - ``readable``: it may read these, even if they are secrets, and not write them
    - ``deny``: hide these paths, or all files that a pattern such as ``**/*.env`` matches
    - ``view``: show only the paths that other words name, and those that programs need to run
    - ``socket``, ``device``, ``kvm``: it may use these UNIX sockets and devices
    - ``profile``: it may do what a tool needs: node, yarn, pnpm, python, uv, go, rust, jvm, ruby, php or git, or a file
      here
    - ``network``: ``on``, ``off``, ``ask``, or ``allow=HOST,…``, ``deny=HOST,…``, ``ask=HOST,…``, ``local``; ``METHOD
      HOST/PATH`` stands where HOST may
    - ``no_transparent``: connect only through the proxy that the variables of the command name
    - ``keep_env``: give the command these variables of the agent, even if they look like secrets
    - ``show_secrets``: hide no secret files
    """

    read_only: bool = False
    workspace: Words = ()
    readable: Words = ()
    deny: Words = ()
    view: bool = False
    socket: Words = ()
    device: Words = ()
    kvm: bool = False
    profile: Words = ()
    network: Words = ()
    no_transparent: bool = False
    keep_env: Words = ()
    show_secrets: bool = False

    def __post_init__(self) -> None:
        for each in fields(self):
            value: object = getattr(self, each.name)
            if isinstance(value, bool):
                continue
            words = _words(cast("Words", value))
            if not all(type(word) is str and word for word in words):
                raise ValueError(f"{each.name} is empty, or not a text")
            object.__setattr__(self, each.name, words)
        if self.read_only and self.workspace:
            raise ValueError("read_only and workspace cannot be used together")
        if self.read_only and self.view:
            raise ValueError("read_only and view cannot be used together, because read_only shows everything")
        network = parse_network(cast("tuple[str, ...]", self.network))
        if self.no_transparent and not network.managed:
            raise ValueError("no_transparent needs a network with hosts, or ask")


class Plan(NamedTuple):
    """What a sandbox means on an agent. It can be given to many commands, and costs no request then.

    ``hidden`` are the secret files that a command does not see.
    """

    sandbox: Mapping[str, Any]
    network_proxy: wire.NetworkProxy | None = None
    env_policy: EnvPolicy | None = None
    hidden: tuple[str, ...] = ()


@dataclass(slots=True)
class _Network:
    on: bool = False
    managed: bool = False
    local: bool = False
    domains: dict[str, Literal["none", "allow", "deny"]] = field(default_factory=lambda: {})
    review: list[str] = field(default_factory=lambda: [])


def _network_words(value: str) -> list[str]:
    """Split a value at its spaces. HOST/PATH belongs to the word before it, because a request rule has a space."""
    words: list[str] = []
    for word in value.split():
        first = word.partition(",")[0]
        before = first.partition("/")[0]
        if words and len(before) < len(first) and "=" not in before and "=" in words[-1]:
            words[-1] += " " + word
        else:
            words.append(word)
    return words


def parse_network(values: Sequence[str]) -> _Network:
    """Read the words of ``network``."""
    n, off = _Network(), False
    for value in values:
        for word in _network_words(value):
            verb, given, listed = word.partition("=")
            hosts = [host for host in listed.split(",") if host]
            if given and not hosts:
                raise ValueError(f"network {verb}= names no host")
            if word == "on":
                n.on = True
            elif word == "off":
                off = True
            elif word == "ask":
                n.managed = True
            elif word == "local":
                n.managed = n.local = True
            elif given and verb == "ask":
                n.managed = True
                n.review += hosts
            elif given and verb in ("allow", "deny"):
                n.managed = True
                for host in hosts:
                    if n.domains.setdefault(host, "allow" if verb == "allow" else "deny") != verb:
                        raise ValueError(f"network allows and denies {host}")
            else:
                raise ValueError(
                    f"network: {shown(word)} is not one of on, off, ask, allow=HOST,…, deny=HOST,…, ask=HOST,…, local"
                )
    if (n.on and off) or (n.managed and (n.on or off)):
        raise ValueError("network on, off and words that name hosts cannot be used together")
    return n


_LISTS = ("include", "write", "read", "deny", "socket", "device", "allow", "env")
_PATH_LISTS = ("write", "read", "deny", "socket", "device")


def _profiles(names: Sequence[str]) -> list[tuple[str, dict[str, list[str]]]]:
    """Read profiles, and those that they include, each once."""
    found: list[tuple[str, dict[str, list[str]]]] = []
    queue, seen = list(names), set[str]()
    while queue:
        name = queue.pop(0)
        if name in seen:
            continue
        seen.add(name)
        if len(seen) > _MAX_PROFILES:
            raise ValueError(f"profile: there are more than {_MAX_PROFILES} profiles")
        profile = _profile(name)
        found.append((name, profile))
        queue += profile["include"]
    return found


def _profile(name: str) -> dict[str, list[str]]:
    # Here, because only some programs use profiles.
    import tomllib
    from importlib import resources

    if "/" in name or name.endswith(".toml"):
        with open(os.path.expanduser(name), "rb") as file:
            text = file.read(_MAX_PROFILE + 1)
        if len(text) > _MAX_PROFILE:
            raise ValueError(f"profile {name} is longer than {_MAX_PROFILE} bytes")
    else:
        folder = resources.files("execagent") / "_profiles"
        if not re.fullmatch("[a-z]+", name) or not (folder / f"{name}.toml").is_file():
            known = sorted(each.name.removesuffix(".toml") for each in folder.iterdir() if each.name.endswith(".toml"))
            raise ValueError(f"profile {shown(name)} is not one of {', '.join(known)}; write a file with a slash")
        text = (folder / f"{name}.toml").read_bytes()
    try:
        values = tomllib.loads(text.decode())
    except ValueError as error:
        raise ValueError(f"profile {name} is not TOML: {error}") from None
    profile: dict[str, list[str]] = {key: [] for key in _LISTS}
    for key, value in values.items():
        if key not in profile:
            raise ValueError(f"profile {name}: unknown key {shown(key)}, expected one of {', '.join(_LISTS)}")
        if not is_texts(value) or "" in value:
            raise ValueError(f"profile {name}: {key} is not a list of texts")
        profile[key] = value
        for word in value if key in _PATH_LISTS else ():
            if not word.startswith(("/", "~/")) and word != "~":
                raise ValueError(f"profile {name}: {key}: {shown(word)} does not begin with / or ~/")
    return profile


class _Planner:
    """Makes a plan on one agent."""

    def __init__(self, core: Core, files: Files, home: str | None, base: str | None) -> None:
        self._core = core
        self._files = files
        self._home = home
        self._base = base

    def expand(self, what: str, word: str) -> str:
        if word == "~" or word.startswith("~/"):
            if self._home is None:
                raise ValueError(f"{what} {word}: the agent does not say what its home is")
            return native(posixpath.join(self._home, word[2:]), what)
        if word.startswith("/"):
            return native(word, what)
        if self._base is None:
            raise ValueError(f"{what} {word}: the agent does not say where it is, so the path has to be absolute")
        return native(posixpath.join(self._base, word), what)

    async def existing(self, what: str, word: str) -> str:
        """Return a path that exists, because an entry for a missing path would have no effect."""
        path = self.expand(what, word)
        await self._files.realpath(path)
        return path

    async def real(self, path: str) -> str | None:
        """Return a path without links; None: it does not exist."""
        try:
            return await self._files.realpath(path)
        except (NotFoundError, NotADirectoryError):
            return None
        except RpcError:
            return path  # it may exist

    async def deny(self, word: str) -> dict[str, Any]:
        path = self.expand("deny", word)
        if any(c in word for c in _WILDCARDS) and await self.real(path) is None:
            if not word.startswith(("/", "~")):
                # The name of the directory may have wildcards, too.
                path = (self._base or "/").translate(_ESCAPED).rstrip("/") + "/" + word
            return {"access": "deny", "path": {"type": "glob_pattern", "pattern": path}}
        return _entry(path, "deny")

    async def secrets(self, named: set[str], histories: tuple[str, ...]) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the entries that hide the secret files and these histories of the home, and their names."""
        if self._home is None:
            return [], []
        names = SECRET_FILES + histories
        paths = [posixpath.join(self._home, name) for name in names]
        reals = await asyncio.gather(*(self.real(path) for path in paths))
        entries: list[dict[str, Any]] = []
        hidden: list[str] = []
        for name, path, real in zip(names, paths, reals, strict=True):
            if real is not None and path not in named and real not in named:
                entry = _entry(real, "deny", skip=True)
                if name in histories:
                    entry["replaceable"] = True
                entries.append(entry)
                hidden.append("~/" + name)
        return entries, hidden


def _entry(path: str, access: str, *, skip: bool = False) -> dict[str, Any]:
    entry: dict[str, Any] = {"access": access, "path": {"type": "path", "path": uri(path)}}
    if skip:
        entry["missing_path_behavior"] = "skip"
    return entry


def _special(kind: str, access: str) -> dict[str, Any]:
    return {"access": access, "path": {"type": "special", "value": {"kind": kind}}}


async def make_plan(core: Core, sandbox: Sandbox, cwd: str | None) -> Plan:
    """Return what a sandbox means on an agent, for commands in a directory."""
    from ._files import Files

    info = await core.info()
    # The operator may give requests without a sandbox a default, or refuse them. What such requests find says nothing
    # about what the command will see, so these have a sandbox that restricts nothing but /sys.
    operator = info.capabilities & {"sandboxDefault", "sandboxRequired"}
    open_sandbox = _wire_sandbox([_special("root", "write"), _entry("/sys", "read")], False)
    files = Files(core, open_sandbox if operator else None)
    planner = _Planner(core, files, info.home, cwd or info.cwd or info.home)
    profiles = _profiles(cast("tuple[str, ...]", sandbox.profile))
    network = parse_network(cast("tuple[str, ...]", sandbox.network))
    if not sandbox.network or network.managed:
        for _, profile in profiles:
            for host in profile["allow"]:
                network.managed = True
                if host not in network.domains and host not in network.review:
                    network.domains[host] = "allow"

    entries = [_special("minimal" if sandbox.view else "root", "read")]
    named: set[str] = set()
    roots: list[str] = []
    for word in sandbox.workspace:
        roots.append(await planner.existing("workspace", word))
    if roots:
        entries += [_special(kind, "write") for kind in ("project_roots", "slash_tmp", "tmpdir")]
    named |= set(roots)
    for word in sandbox.readable:
        path = await planner.existing("readable", word)
        entries.append(_entry(path, "read"))
        named.add(path)
    sockets = [await planner.existing("socket", word) for word in sandbox.socket]
    devices: list[str] = []
    for word in (*sandbox.device, *(("/dev/kvm",) if sandbox.kvm else ())):
        # A device is named without links, because a view shows no links to devices.
        devices.append(await planner.real(await planner.existing("device", word)) or word)
    entries += [await planner.deny(word) for word in sandbox.deny]
    keep = list(sandbox.keep_env)
    for name, profile in profiles:
        for word in profile["write"]:
            path = planner.expand(f"profile {name}", word)
            await files.mkdir(path)  # so that the command can use it
            entries.append(_entry(path, "write"))
            named.add(path)
        for word in profile["read"]:
            path = planner.expand(f"profile {name}", word)
            entries.append(_entry(path, "read", skip=True))
            named.add(path)
        sockets += [planner.expand(f"profile {name}", word) for word in profile["socket"]]
        devices += [planner.expand(f"profile {name}", word) for word in profile["device"]]
        entries += [await planner.deny(word) for word in profile["deny"]]
        keep += profile["env"]
    hidden: list[str] = []
    if not sandbox.show_secrets:
        denied, hidden = await planner.secrets(named, HISTORIES if "sandboxReplaceable" in info.capabilities else ())
        entries += denied
    if sockets and "sandboxUnixSockets" not in info.capabilities:
        raise UnsupportedError("policies with UNIX sockets", "sandboxUnixSockets")
    if devices and "sandboxDevices" not in info.capabilities:
        raise UnsupportedError("policies with devices", "sandboxDevices")
    for kind, paths in (("unix_socket", sockets), ("device", devices)):
        entries += [{"access": "write", "path": {"type": kind, "path": uri(path)}} for path in paths]

    proxy: wire.NetworkProxy | None = None
    if network.managed:
        if "networkProxyLaunch" not in info.capabilities:
            raise UnsupportedError("proxies for processes", "networkProxyLaunch")
        transparent = not sandbox.no_transparent and "networkProxyTransparentTcp" in info.capabilities
        proxy = {
            "proxy": {
                "enabled": True,
                "enableSocks5": True,
                "enableSocks5Udp": False,
                "allowUpstreamProxy": True,
                "dangerouslyAllowAllUnixSockets": False,
                "allowLocalBinding": network.local,
                "mode": "full",
                "domains": network.domains,
                "reviewDomains": network.review,
                "transparentTcp": transparent,
            }
        }
        if core.config.callbacks.on_network is not None:
            proxy["policyDecisionTimeoutMs"] = _PATIENCE
    env_policy = EnvPolicy("all", True, include_only=(*keep, *_CORE)) if keep else None
    at = cwd or info.cwd or info.home
    return Plan(_wire_sandbox(entries, network.on, at, roots), proxy, env_policy, tuple(hidden))


def _wire_sandbox(
    entries: list[dict[str, Any]], network: bool, cwd: str | None = None, roots: Sequence[str] = ()
) -> dict[str, Any]:
    sandbox: dict[str, Any] = {
        "permissions": {
            "type": "managed",
            "file_system": {"type": "restricted", "entries": entries},
            "network": "enabled" if network else "restricted",
        },
        "windowsSandboxLevel": "disabled",
    }
    if cwd is not None:
        sandbox["cwd"] = uri(cwd)
    if roots:
        sandbox["workspaceRoots"] = [uri(root) for root in roots]
    return sandbox
