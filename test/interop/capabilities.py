"""Scenarios about what the client finds on the executor: skills, plugins, MCP servers, the state of its login shell, its rules."""
import json
import os
import time

import appserver
import mcp_http
import rig
from rig import HERE, MARK, call, sh
from scenarios import BOTH, PROFILE, PROXIED, scenario


def skill(name, description, body="x"):
    return f"---\nname: {name}\ndescription: {description}\n---\n\n{body}\n"


def counted_server(folder):
    """The words of a manifest for a stdio server that notes each of its starts in a folder of the executor."""
    return {"command": "sh", "args": ["-c", f"echo started >> {folder}/starts; exec python3 echo.py"], "cwd": "srv"}


def plugin(put, root, name, servers, description):
    """A plugin with a skill and MCP servers."""
    put(f"{root}/.codex-plugin/plugin.json", json.dumps({"name": name}))
    put(f"{root}/skills/s1/SKILL.md", skill("s1", description, "BODY-OF-A-SKILL"))
    put(f"{root}/skills/s1/more.txt", "RESOURCE-OF-A-SKILL\n")
    put(f"{root}/.mcp.json", json.dumps({"mcpServers": servers}))
    with open(f"{HERE}/mcp_echo.py") as f:
        put(f"{root}/srv/echo.py", f.read())


def web_server(t):
    """An MCP server by HTTP, and its port: one that no other server has had, as the executor keeps connections."""
    web = mcp_http.start(0)
    t.cleanup(lambda: (web.shutdown(), web.server_close()))
    return web, web.server_address[1]


def starts(t, folder):
    return t.get(f"{folder}/starts").count("started")


def search(c, query):
    return json.dumps(c.step({"type": "tool_search_call", "call_id": f"search-{time.time_ns()}", "execution": "client", "arguments": {"query": query}}))


def listed(c):
    return "\n".join(c.request().texts())


def read_skill(c, **arguments):
    return c.step({**call("read", **arguments), "namespace": "skills"})


def selected_roots(t, features):
    """A selected root: its skill is listed and read, its servers run on the executor; what changes in it is seen by a fork."""
    web, port = web_server(t)
    servers = {"echo": counted_server(t.ws), "web": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}, "none": {"command": "/no/such/server"}}
    plugin(t.put, f"{t.out}/plug", "demo", servers, "DESCRIBED-AT-FIRST")
    c = appserver.AppServer(t, t.env(t.rig.proxy_url), [o for f in features for o in ("--enable", f)])
    thread = c.thread({"demo@1": f"{t.out}/plug"})
    turn = c.turn(thread)
    t.has(listed(c), "demo:s1: DESCRIBED-AT-FIRST (executor package: e0/skills/s1)", f"`e0` = `skill://demo@1{t.out}/plug`")
    for name in servers:
        c.note("mcpServer/startupStatus/updated", threadId=thread, name=name, status="failed" if name == "none" else "ready")
    t.has(read_skill(c, package="e0/skills/s1"), "BODY-OF-A-SKILL")
    t.has(read_skill(c, package="e0/skills/s1", resource=f"skill://demo@1{t.out}/plug/skills/s1/more.txt"), "RESOURCE-OF-A-SKILL")
    t.has(search(c, "echo"), "mcp__echo")
    t.has(search(c, "shout"), "mcp__web")
    t.has(c.step({**call("where", text="hej"), "namespace": "mcp__echo"}), f"hej on {t.rig.hostname}")
    t.has(c.step({**call("shout", text="aloud"), "namespace": "mcp__web"}), "ALOUD")
    c.end(thread, turn)
    t.check(starts(t, t.ws) == 1, "the server of the root has not started once")
    t.put(f"{t.out}/plug/skills/s1/SKILL.md", skill("s1", "DESCRIBED-ANEW"))
    turn = c.turn(thread)
    again = listed(c)
    t.check(("DESCRIBED-ANEW" in again) == (not features), "the second turn has looked again" if features else "the second turn has not looked again")
    c.end(thread, turn)
    fork = c.ask("thread/fork", threadId=thread)["thread"]["id"]
    turn = c.turn(fork)
    t.has(listed(c), "demo:s1: DESCRIBED-ANEW")
    c.note("mcpServer/startupStatus/updated", threadId=fork, name="echo", status="ready")
    c.end(fork, turn)
    t.check(starts(t, t.ws) == 2, "the fork has no server of its own")
    c.quit()
    if not t.rig.registry:
        found = [r["params"]["roots"] for r in t.sent("capabilityRoots/discoverV1")]
        want = [["demo@1"]] * 2 if features else []
        t.check([[r["id"] for r in roots] for roots in found] == want, f"capabilityRoots/discoverV1: {found}")


@scenario("bypass")
def selected_roots_by_files(t):
    selected_roots(t, [])


@scenario(*BOTH)
def selected_roots_v1(t):
    selected_roots(t, ["executor_capability_discovery"])


@scenario("profile")
def selected_root_denied(t):
    """What the thread's profile denies is in no root: neither listed nor read, and no other skill is missing."""
    t.write_config(PROFILE.format(ws=t.ws, out=t.out))
    t.put("open/SKILL.md", skill("open", "SKILL-TO-SEE", "BODY-TO-SEE"))
    t.put("secret/SKILL.md", skill("hidden", "NOT-TO-SEE", "NEITHER-THIS"))
    t.put(f"{t.out}/more/SKILL.md", skill("hidden", "NOT-TO-SEE", "NEITHER-THIS"))
    os.symlink(t.out, t.path("link"))
    c = appserver.AppServer(t, t.env(t.rig.proxy_url), ["--enable", "executor_capability_discovery"])
    thread = c.thread({"all": t.ws, "none": t.out})
    turn = c.turn(thread)
    text = listed(c)
    t.has(text, "open: SKILL-TO-SEE")
    t.lacks(text, "NOT-TO-SEE")
    t.has(read_skill(c, package=f"skill://all{t.ws}/open"), "BODY-TO-SEE")
    for package in (f"skill://all{t.ws}/secret", f"skill://all{t.ws}/link/more", f"skill://none{t.out}/more"):
        t.lacks(read_skill(c, package=package), "NEITHER-THIS")
    c.end(thread, turn)
    c.quit()
    if not t.rig.registry:
        t.check(all(root["sandbox"] for m in t.sent("capabilityRoots/discoverV1") for root in m["params"]["roots"]), "a root was read without a sandbox")


@scenario("workspace")
def installed_v2(t):
    """What is installed for the executor's user: its skills are listed and read, and a plugin's servers run."""
    home = t.rig.executor_home
    own = t.at_executor_home
    own("skills/k/SKILL.md", skill("k-skill", "OF-CODEX-HOME", "BODY-OF-K"))
    own(".agents/skills/u/SKILL.md", skill("u-skill", "OF-THE-USER"))
    own(".agents/skills/bad/SKILL.md", "no front matter")
    plugin(own, "plugins/cache/mk/inst/1.0.0", "inst", {"echo": counted_server(t.ws)}, "OF-A-PLUGIN")
    t.write_config('\n[plugins."inst@mk"]\nenabled = true\n')
    c = appserver.AppServer(t, t.env(t.rig.proxy_url), ["--enable", "executor_capability_discovery_v2", "--enable", "executor_capability_discovery"])
    # An executor that has answered before may not have noticed yet that something has changed.
    for _ in range(30):
        thread = c.thread({})
        turn = c.turn(thread)
        text = listed(c)
        if "k-skill" in text:
            break
        c.end(thread, turn)
    t.has(text, "k-skill: OF-CODEX-HOME", "u-skill: OF-THE-USER", "inst:s1: OF-A-PLUGIN")
    t.has(read_skill(c, package=f"skill://codex-home-skills{home}/skills/k"), "BODY-OF-K")
    c.note("mcpServer/startupStatus/updated", threadId=thread, name="echo", status="ready")
    t.has(search(c, "echo"), "mcp__echo")
    t.has(c.step({**call("where", text="hej"), "namespace": "mcp__echo"}), f"hej on {t.rig.hostname}")
    c.end(thread, turn)
    c.quit()
    t.check(starts(t, t.ws) >= 1, "the server of the plugin has not started")


@scenario("bypass")
def executor_config_server(t):
    """An MCP server of the executor's own configuration, with a secret that the client never sees."""
    web, port = web_server(t)
    t.at_executor_home("config.toml", f'[mcp_servers.web]\nurl = "http://127.0.0.1:{port}/mcp"\nbearer_token_env_var = "EXECUTOR_MARK"\n')
    c = t.codex()
    c.request()
    t.has(search(c, "shout"), "mcp__web")
    t.has(c.step({**call("shout", text="aloud"), "namespace": "mcp__web"}), "ALOUD")
    c.finish()
    told = {next((v for k, v in headers.items() if k.lower() == "authorization"), None) for _, _, headers in web.seen}
    t.check(told == {f"Bearer {MARK}"}, f"authorizations: {told}")


@scenario("bypass")
def skills_required(t):
    """A skill that an environment requires has to be there before the model is asked."""
    plugin(t.put, f"{t.out}/plug", "demo", {}, "REQUIRED-SKILL")
    for name, there in (("demo:s1", True), ("zzz", False)):
        with open(f"{t.home}/environments.toml", "w") as f:
            f.write(f'default = "remote"\ninclude_local = false\n\n[[environments]]\nid = "remote"\nurl = "{t.rig.proxy_url}"\nskills.required = ["{name}"]\n')
        c = appserver.AppServer(t, t.env(None), ["--enable", "executor_capability_discovery"])
        thread = c.thread({"demo@1": f"{t.out}/plug"})
        turn = c.turn(thread)
        if there:
            t.has(listed(c), "REQUIRED-SKILL")
            c.end(thread, turn)
        else:
            t.has(json.dumps(c.ended(turn)), 'Required skill \\"zzz\\" from environment \\"remote\\" is unavailable')
        c.quit()


@scenario(*BOTH)
def shell_snapshot(t):
    """Startup files run once for a thread, and their state is in every command."""
    t.at_executor_home(".bash_profile", "echo run >> ~+/runs\nexport FROM_PROFILE=state\nf() { echo \"function of $FROM_PROFILE\"; }\nalias greet='echo alias'\nshopt -s expand_aliases\necho noise\n")
    t.write_config('\n[features]\nshell_snapshot_v2 = true\n\n[shell_environment_policy]\nset = { HOME = "' + t.rig.executor_home + '" }\n')
    c = t.codex()
    for _ in range(3):
        o = c.step(sh("f; greet; env | grep -c SNAPSHOT; shopt -q login_shell; echo login-$?"))
        t.has(o, "function of state", "alias")
        t.lacks(o, "noise")
    t.check(t.get("runs") == "run\n", f"the startup file has run: {t.get('runs')!r}")
    t.has(c.step(sh("f; exit 9", tty=True)), "function of state", "code 9")
    c.finish()
    t.check(t.get("runs") == "run\n", f"the startup file has run: {t.get('runs')!r}")
    if not t.rig.registry:
        t.check(all(m["params"].get("shellSnapshot") for m in t.sent("process/start")), "a start has asked for no snapshot")


@scenario("profile")
def shell_snapshot_managed_network(t):
    """Startup files have the network of the commands: a proxy that keeps to the list."""
    port = t.model.server.server_address[1]
    fetch = "$(curl -s -m 10 -o /dev/null -w '%{http_code}' "
    t.at_executor_home(
        ".bash_profile",
        f"echo run >> ~+/runs\nexport ALLOWED={fetch} http://127.0.0.1:{port}/v1/nothing) DENIED={fetch} http://blocked.example.org/)\n"
        f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null; export DIRECT=$?\n",
    )
    t.write_config(PROXIED.format(ws=t.ws).replace("network_proxy = true", "network_proxy = true\nshell_snapshot_v2 = true"))
    c = t.codex()
    for _ in range(2):
        t.has(c.step(sh("echo allowed-$ALLOWED denied-$DENIED direct-$DIRECT", yield_time_ms=20000)), "allowed-404 denied-403 direct-1")
    c.finish()
    t.check(t.get("runs") == "run\n", f"the startup file has run: {t.get('runs')!r}")


@scenario(*BOTH)
def exec_policy(t):
    """What the operator's rules forbid is a failed command for the model, and the turn goes on."""
    url = "proxy"  # an executor behind a registry has the rules anyway
    if not t.rig.registry:
        _, url = t.own_executor(flags=f"--exec-policy {HERE}/rules --exec-policy-enforce tree --provide-apply-patch")
    t.write_config("\n[features]\nshell_snapshot_v2 = true\n")
    c = t.codex(url=url)
    t.put("keep.txt", "kept\n")
    t.has(c.step(sh("rm keep.txt")), "rejected: USE-TRASH")
    t.has(c.step(sh("echo before && git push origin")), "requires approval by policy")
    o = c.step(sh("r=rm; $r keep.txt; echo below-$?; echo on | cat; exit 3"))
    t.has(o, "below-126", "on")
    t.exit_code(o, 3)
    t.check(t.get("keep.txt") == "kept\n", "a file was removed")
    # The client's own tool, and the executor's for what a command writes. Startup files would set PATH anew.
    t.has(c.step(rig.patch("*** Update File: keep.txt", "@@", "-kept", "+patched")), "Success")
    lines = "*** Begin Patch\\n*** Update File: keep.txt\\n@@\\n-patched\\n+again\\n*** End Patch\\n"
    o = c.step(sh(f"printf '{lines}' > p; apply_patch < p; cat keep.txt"))
    t.exit_code(o, 0)
    t.check(t.get("keep.txt") == "again\n", f"keep.txt is {t.get('keep.txt')!r}")
    c.finish()
