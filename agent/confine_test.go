package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/internal/egress"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// outcome is how a process with a sandbox ended.
type outcome struct {
	exit   int
	output string
	denied bool
	layers []string
}

// runIn runs a shell script with a sandbox to its end.
func (c *client) runIn(id, script, dir string, sandbox any) outcome {
	c.t.Helper()
	var started protocol.StartResult
	c.must("process/start", object{
		"processId": id, "argv": []string{"/bin/sh", "-c", script}, "cwd": uri(dir),
		"env": object{"PATH": "/usr/local/bin:/usr/bin:/bin"}, "tty": false, "arg0": nil, "sandbox": sandbox,
	}, &started)
	rig.Is(c.t, started.SandboxType, protocol.SandboxLinuxSeccomp, "sandboxType")
	c.awaitNote("process/closed", id)
	r := c.read(id, 0)
	return outcome{*r.ExitCode, c.output(id), r.SandboxDenied, started.SandboxLayers}
}

// wants fails unless the process has ended with a code, and printed this part.
func (o outcome) wants(t *testing.T, what string, exit int, part string) {
	t.Helper()
	if o.exit != exit || !strings.Contains(o.output, part) {
		t.Errorf("%s: exit %d, output %q; want %d and %q", what, o.exit, o.output, exit, part)
	}
}

// TestConfinedProcesses goes through the rows of sandbox.md 6, 9.1 and 9.2
// that the wire shows.
func TestConfinedProcesses(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	c := newHarness(t, Config{StateDir: t.TempDir() + "/state"}).attach("")
	sandboxes := map[string]object{
		"ro": b.readOnly(), "ww": b.workspaceWrite(), "nested": b.nested(), "view": b.view(), "globs": b.globs(),
		"bad glob": managed("restricted", special("root", "read"), glob("/**/*.env")), "disabled": disabled,
	}
	for _, row := range rig.Rows(t, "testdata/confined.txt", "commands", 5) {
		script := strings.ReplaceAll(row[1], "$OUT", b.out)
		o := c.runIn(row[0]+": "+script, script, b.repo, sandboxes[row[0]])
		o.wants(t, script, rig.Value(strconv.Atoi(row[2])), row[3])
		rig.Is(t, fmt.Sprint(o.denied), row[4], "%s: denied", script)
	}
	for _, name := range []string{".codex", ".agents", ".aws"} {
		rig.Is(t, rig.Err(os.Lstat(b.repo+"/"+name)), fs.ErrNotExist, "%s, left behind", name)
	}

	c.runIn("disabled", "true", b.repo, disabled).wants(t, "disabled", 0, "")
	started := map[string][]string{"layers": c.runIn("layers", "true", b.repo, b.workspaceWrite()).layers, "disabled": {}}
	var list protocol.ListResult
	c.must("process/list", object{}, &list)
	for _, p := range list.Processes {
		if want, ok := started[p.ProcessID]; ok {
			rig.Same(t, p.ProcessID+" in process/list", want, p.SandboxLayers)
			delete(started, p.ProcessID)
		}
	}
	rig.Is(t, len(started), 0, "processes that are not listed")
	layers := strings.Join(c.runIn("layers again", "true", b.repo, b.workspaceWrite()).layers, " ")
	if want := "userns mountns pidns netns landlock:"; !strings.HasPrefix(layers, want) || !strings.HasSuffix(layers, " seccomp") {
		t.Errorf("layers %q, want %s… seccomp", layers, want)
	}

	var gone protocol.StartResult
	c.must("process/start", object{"processId": "gone", "argv": []string{"no-such-program"}, "cwd": uri(b.repo),
		"env": object{"PATH": "/bin"}, "tty": false, "arg0": nil, "sandbox": b.readOnly()}, &gone)
	rig.Is(t, c.awaitNote("process/exited", "gone").exit, 101, "missing program: exit")
	foreign := b.readOnly()
	foreign["cwd"] = "file://host/x"
	err := c.call("process/start", object{"processId": "foreign", "argv": []string{"true"}, "cwd": uri(b.repo),
		"env": object{}, "tty": false, "arg0": nil, "sandbox": foreign}, nil)
	rig.Says(t, err, "file://host/x", "a foreign cwd")
}

// TestInheritPIDs: if the operator says so, confined commands see other processes and may signal them.
// They read neither environment nor memory.
func TestInheritPIDs(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	other := exec.Command("sleep", "1000")
	rig.Must(t, other.Start())
	defer func() { _ = errors.Join(other.Process.Kill(), other.Wait()) }()
	script := fmt.Sprintf("kill -0 %[1]d && tr '\\0' ' ' </proc/%[1]d/cmdline; cat /proc/%[1]d/environ /proc/%[1]d/maps; true", other.Process.Pid)
	for _, inherit := range []bool{false, true} {
		c := newHarness(t, Config{StateDir: t.TempDir() + "/state", Operator: sandbox.Operator{InheritPIDs: inherit}}).attach("")
		o := c.runIn("p", script, b.repo, b.workspaceWrite())
		rig.Is(t, strings.Contains(o.output, "sleep 1000"), inherit, "%v, %q: the command sees the other process", o.layers, o.output)
		rig.Is(t, slices.Contains(o.layers, "pidns"), !inherit, "%v: there is a pid namespace", o.layers)
		rig.Is(t, strings.Contains(o.output, "PATH="), false, "%q: the environment", o.output)
		rig.Is(t, strings.Count(o.output, "Permission denied"), map[bool]int{true: 2}[inherit], "%q: refused", o.output)
	}
}

// TestProvidedTool: commands find the tool apply_patch, whatever their policy lets them read, and
// cannot replace it, wherever they may write.
func TestProvidedTool(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	tool, err := ProvideTool()
	rig.Must(t, err)
	t.Cleanup(func() {
		rig.Must(t, tool.Close())
	})
	c := newHarness(t, Config{StateDir: t.TempDir() + "/state", Tool: tool}).attach("")
	var info protocol.EnvironmentInfo
	c.must("environment/info", object{}, &info)
	if len(info.PrependPathDirs) != 1 || info.PrependPathDirs[0] != protocol.NewPathURI(tool.folder().Dir()) {
		t.Errorf("prependPathDirs is %v", info.PrependPathDirs)
	}
	everywhere := managed("restricted", special("root", "write"), at(b.out, "read"))
	for name, sandbox := range map[string]object{
		"none": disabled,
		"rw":   b.workspaceWrite(),
		"view": managed("restricted", special("minimal", "read"), at(b.repo, "write")),
		"all":  everywhere,
	} {
		script := "printf '*** Begin Patch\n*** Add File: " + name + "\n+x\n*** End Patch\n' | apply_patch && cat " + name
		if o := c.runIn(name, script, b.repo, sandbox); o.exit != 0 || o.output != "Success. Updated the following files:\nA "+name+"\nx\n" {
			t.Errorf("%s: exit %d, output %q", name, o.exit, o.output)
		}
		if name == "none" {
			continue
		}
		script = "exec 2>&1; d=${PATH%%:*}; for f in $d/x $d/apply_patch; do (echo x > $f); done; rm $d/apply_patch; mv $d $d.old; cd /; ls $d"
		if o := c.runIn(name+" attack", script, b.repo, sandbox); o.exit != 0 || !strings.HasSuffix(o.output, "\napply_patch\n") {
			t.Errorf("%s: exit %d, output %q", name, o.exit, o.output)
		}
	}
	// Patches come from models, too.
	script, put := b.repo+"/script", "*** Begin Patch\n*** Update File: script\n*** Move to: "+tool.folder().Dir()+"/apply_patch\n@@\n-a\n+b\n*** End Patch"
	rig.Must(t, os.WriteFile(script, []byte("a\n"), 0o700))
	for method, params := range map[string]object{
		"fs/applyPatch": {"patch": put, "cwd": uri(b.repo)},
		"fs/remove":     {"path": uri(tool.folder().Dir()), "recursive": true},
		"fs/rename":     {"sourcePath": uri(tool.folder().Dir()), "destinationPath": uri(tool.folder().Dir() + ".old")},
		"fs/writeFile":  {"path": uri(tool.folder().Dir() + "/x"), "dataBase64": ""},
	} {
		params["sandbox"] = everywhere
		if err := c.call(method, params, nil); err == nil || strings.Contains(err.Error(), "missing") || strings.Contains(err.Error(), "unknown") {
			t.Errorf("%s: %v", method, err)
		}
	}
	if entries, err := os.ReadDir(tool.folder().Dir()); err != nil || len(entries) != 1 || entries[0].Type() != os.ModeSymlink {
		t.Errorf("the folder of the tool has %v, %v", entries, err)
	}
	out := "printf '*** Begin Patch\n*** Add File: " + b.out + "/n\n+x\n*** End Patch\n' | apply_patch"
	want := "Failed to write file " + b.out + "/n\nRead-only file system (os error 30)\n"
	o := c.runIn("out", out, b.repo, b.workspaceWrite())
	rig.Is(t, o.exit == 1 && o.output == want, true, "outside: exit %d, output %q", o.exit, o.output)
}

// TestTrustedRootsStay: no confined command or file request changes the file of roots that others trust, wherever it
// may write, by whichever name, and also if it began before there was a file.
func TestTrustedRootsStay(t *testing.T) {
	b := newBox(t)
	t.Setenv("XDG_RUNTIME_DIR", b.out)
	rig.Must(t, os.Symlink(b.out, filepath.Dir(b.out)+"/by-link"))
	const attack = `exec 2>/dev/null; read _; for d in "$1"/execagent-trust-*; do chmod 777 $d; chmod 666 $d/*; echo evil >$d/trusted.crt
		rm $d/trusted.crt; mv $d $d.old; mv $d/trusted.crt $d/x; ln -s /etc $d; done; : >"$1"/tried`
	for _, without := range []sandbox.Layer{sandbox.Pidfd, sandbox.UserNS} {
		h := newHarness(t, Config{StateDir: t.TempDir() + "/state"})
		host := hostProbed()
		host.Layers = host.Layers.Without(without)
		h.agent.sandboxes.probed = func() sandbox.Host { return host }
		c := h.attach("")
		start := func(id, root string) {
			params := sh(id, "")
			params["argv"] = []string{"/bin/sh", "-c", attack, "sh", root}
			params["sandbox"] = managed("restricted", special("root", "read"), at(root, "write"))
			c.must("process/start", params, nil)
		}
		start("early", b.out)
		plan := rig.Value(egress.Of(&protocol.NetworkProxy{Proxy: protocol.ProxyParams{Enabled: true, CredentialMasking: true}}, "p"))
		file := rig.Value(h.agent.networks.Bundle(plan))
		want := rig.Value(os.ReadFile(file))
		start("late", b.out)
		start("by a link", filepath.Dir(b.out)+"/by-link")
		for _, id := range []string{"early", "late", "by a link"} {
			c.must("process/write", object{"processId": id, "chunk": []byte("\n"), "writeId": "w"}, nil)
			c.awaitNote(protocol.MethodProcessClosed, id)
			rig.Is(t, *c.read(id, 0).ExitCode, 0, "%s: exit code; %s", id, c.output(id))
			rig.Must(t, os.Remove(b.out+"/tried"))
			rig.Is(t, string(rig.Value(os.ReadFile(file))), string(want), "%s, without %v: the file has", id, without)
		}
		err := c.call("fs/writeFile", object{"path": uri(file), "dataBase64": "", "sandbox": managed("restricted", special("root", "read"), at(b.out, "write"))}, nil)
		rig.Says(t, err, "Read-only file system", "fs/writeFile")
	}
}

// TestSharedMemoryStays: a supervised command that is granted /dev/shm finds the shared memory of no other command.
func TestSharedMemoryStays(t *testing.T) {
	t.Parallel()
	state, err := os.MkdirTemp("/dev/shm", "state")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { rig.Must(t, os.RemoveAll(state)) })
	h := newHarness(t, Config{StateDir: state})
	host := hostProbed()
	host.Layers = host.Layers.Without(sandbox.UserNS)
	h.agent.sandboxes.probed = func() sandbox.Host { return host }
	c := h.attach("")
	segment := "segment-" + filepath.Base(state) // killed agents may have left others
	owner := sh("owner", "cd /dev/shm; echo mine >"+segment+"; echo up; read _; cat "+segment)
	owner["sandbox"] = managed("restricted", special("root", "read"), at(state+"-none", "deny"))
	c.must("process/start", owner, nil)
	c.awaitNote("process/output", "owner")
	other := c.runIn("other", `exec 2>/dev/null; find /dev/shm -name `+segment+`; for f in $(find /dev/shm/ -name "execagent-shm-*"); do echo theirs >$f/`+segment+`; done; echo end`,
		"/", managed("restricted", special("root", "read"), at("/dev/shm", "write")))
	rig.Is(t, other.output, "end\n", "another one finds")
	c.must("process/write", object{"processId": "owner", "chunk": []byte("\n"), "writeId": "w"}, nil)
	c.awaitNote(protocol.MethodProcessClosed, "owner")
	rig.Is(t, c.output("owner"), "up\nmine\n", "the owner has")
}

// TestNoHelpers: in a program that does not run the hidden modes of package helper,
// the agent cannot confine, and refuses every request that asks for it.
func TestNoHelpers(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	r := &harness{t: t, agent: New(Config{})}
	t.Cleanup(r.close)
	c := r.attach("")
	for method, params := range map[string]object{
		"fs/readFile":   {"path": uri(b.repo + "/a.txt"), "sandbox": b.readOnly()},
		"process/start": {"processId": "p", "argv": []string{"true"}, "cwd": uri(b.repo), "env": object{}, "tty": false, "arg0": nil, "sandbox": b.readOnly()},
		"socket/open":   {"socketId": "s", "address": "tcp://" + listenFor(t, func(net.Conn) { t.Error("somebody has connected") }), "sandbox": b.readOnly()},
	} {
		err := c.call(method, params, nil)
		rig.Says(t, err, "cannot confine", "%s", method)
		if e, ok := errors.AsType[*protocol.Error](err); method == "process/start" {
			rig.Is(t, ok && string(e.Data) == `{"kind":"sandboxUnavailable"}`, true, "%s: data %s", method, e.Data)
		}
	}
}

// box is the fixture of sandbox.md 17: a workspace with a repository, a vault
// and links, and things beside it.
type box struct{ root, repo, out string }

func newBox(t *testing.T) box {
	t.Helper()
	root := rig.Value(filepath.EvalSymlinks(t.TempDir()))
	b := box{root, root + "/repo", root + "/out"}
	for path, text := range map[string]string{
		"repo/a.env": "secret", "repo/a.txt": "a", "repo/.git/HEAD": "ref", "repo/.git/config": "c",
		"repo/vault/x": "hidden", "repo/d/e/b.txt": "b", "repo/d/f": "f", "out/f": "out",
	} {
		file := filepath.Join(root, path)
		rig.Must(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)))
	}
	err := errors.Join(os.Symlink(b.out, b.repo+"/link"), os.Symlink(b.repo+"/a.txt", b.repo+"/inner"),
		os.Symlink(b.repo+"/vault", b.repo+"/tovault"), syscall.Mkfifo(b.repo+"/fifo", 0o644))
	rig.Must(t, err)
	return b
}

func special(kind, access string) object {
	return object{"path": object{"type": "special", "value": object{"kind": kind}}, "access": access}
}

func at(path, access string) object {
	return object{"path": object{"type": "path", "path": uri(path)}, "access": access}
}

func glob(pattern string) object {
	return object{"path": object{"type": "glob_pattern", "pattern": pattern}, "access": "deny"}
}

func managed(network string, entries ...object) object {
	return object{
		"permissions": object{
			"type": "managed", "network": network,
			"file_system": object{"type": "restricted", "entries": entries},
		},
		"windowsSandboxLevel": "disabled",
	}
}

// disabled is a sandbox that confines nothing.
var disabled = object{"permissions": object{"type": "disabled"}, "windowsSandboxLevel": "disabled"}

func (b box) readOnly() object { return managed("restricted", special("root", "read")) }

func (b box) workspaceWrite() object {
	return managed("restricted", special("root", "read"), at(b.repo, "write"), at(b.repo+"/vault", "deny"))
}

// nested returns a policy whose rules are for directories within each other: the
// nearest rule counts (sandbox.md 5, item 6).
func (b box) nested() object {
	return managed("restricted", special("root", "read"), at(b.repo, "write"), at(b.repo+"/d", "none"), at(b.repo+"/d/e", "write"))
}

func (b box) view() object {
	return managed("restricted", special("minimal", "read"), at(b.repo, "read"))
}

func (b box) globs() object {
	return managed("restricted", special("root", "read"), glob(b.repo+"/**/*.env"))
}

// TestRootBecomesLink: a command replaces a directory by a symbolic link. A later
// policy names that directory as a root. Neither a command nor a file request under
// this policy sees what the link leads to.
func TestRootBecomesLink(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	c := newHarness(t, Config{StateDir: t.TempDir() + "/state"}).attach("")
	workspace := func(root string) object { return managed("restricted", special("root", "read"), at(root, "write")) }
	for _, dir := range []string{b.repo + "/pkg", b.root + "/home", b.root + "/store"} {
		rig.Must(t, os.Mkdir(dir, 0o755))
	}
	rig.Must(t, os.Symlink(b.root+"/store", b.root+"/home/src"))
	write := func(path string, sandbox object) error {
		return c.call("fs/writeFile", object{"path": uri(path), "dataBase64": "eA==", "sandbox": sandbox}, nil)
	}
	// Before: the directory itself, and a link of the user's own.
	rig.Must(t, write(b.repo+"/pkg/before", workspace(b.repo+"/pkg")))
	plant := "mv pkg pkg.old && ln -s " + b.out + " pkg"
	c.runIn("plant", plant, b.repo, workspace(b.repo)).wants(t, "plant", 0, "")
	rig.Says(t, write(b.repo+"/pkg/planted", workspace(b.repo+"/pkg")), "an earlier command could have made", "a file request")
	use := "echo x > planted"
	c.runIn("use", use, "/", workspace(b.repo+"/pkg")).wants(t, "use", 101, b.repo+"/pkg -> "+b.out)
	c.runIn("in place", use, b.repo, workspace(b.repo+"/pkg")).wants(t, "use in place", 101, "")
	rig.Is(t, len(rig.Value(os.ReadDir(b.out))), 1, "entries outside")
	c.runIn("own link", "echo x > "+b.root+"/home/src/new", "/", workspace(b.root+"/home/src")).wants(t, "a link of the user's own", 0, "")
	rig.Check(t, write(b.root+"/home/src/newer", workspace(b.root+"/home/src")))
}

// TestFailedStartLeavesNoCgroup: a start that is refused after its control group was made takes
// that away.
func TestFailedStartLeavesNoCgroup(t *testing.T) {
	t.Parallel()
	groups, err := procs.NewCgroups(procs.CgroupLimits{})
	if errors.Is(err, procs.ErrNotDelegated) {
		t.Skip(err)
	}
	rig.Must(t, err)
	c := newHarness(t, Config{Cgroups: groups, RequireNetworkEnforcement: true, StateDir: t.TempDir() + "/state"}).attach("")
	params := sh("p", "true")
	params["sandbox"] = managed("enabled", special("root", "read"))
	rig.Is(t, c.call("process/start", params, nil) != nil, true, "the start is refused")
	rig.Check(t, groups.Close()) // it fails while a group is left
}
