package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A way is one of those in which commands are run.
type way struct {
	name     string
	readOnly bool
	command  func(b *bench, workspace string) []string // what a command line is appended to
}

// ways has unconfined first. Everything but the namespaces runs below the launcher, which makes a
// call some 0.1 µs slower for all of them.
var ways = []way{
	{"bare", false, func(b *bench, _ string) []string { return []string{b.launcher, "--"} }},
	{"continued", false, func(b *bench, _ string) []string { return []string{b.launcher, "--", b.self, continuedArg} }},
	{"landlock", true, func(b *bench, _ string) []string {
		return []string{b.launcher, "-no-listener", "--", b.agent, "sandbox", "--"}
	}},
	{"namespaces", false, func(b *bench, workspace string) []string {
		return []string{b.agent, "sandbox", "--workspace", workspace, "--"}
	}},
	{"W", false, func(b *bench, workspace string) []string {
		return []string{b.launcher, "--", b.agent, "sandbox", "--workspace", workspace, "--"}
	}},
	{"S", false, func(b *bench, workspace string) []string {
		return []string{b.launcher, "--", b.agent, "sandbox", "--policy", policyFile(workspace), "--"}
	}},
}

// policyFile is where the policy for a workspace is that takes level S.
func policyFile(workspace string) string { return filepath.Dir(workspace) + "/policy.json" }

// writePolicy writes it: the workspace may be written, one path beside it and a glob are denied.
func writePolicy(workspace string) error {
	type object = map[string]any
	special := func(access, kind string) object {
		return object{"access": access, "path": object{"type": "special", "value": object{"kind": kind}}}
	}
	uri := "file://" + workspace
	text, err := json.Marshal(object{
		"permissions": object{"type": "managed", "network": "restricted", "file_system": object{"type": "restricted", "entries": []object{
			special("read", "root"), special("write", "project_roots"),
			{"access": "deny", "path": object{"type": "path", "path": "file://" + filepath.Dir(workspace) + "/vault"}},
			{"access": "deny", "path": object{"type": "glob_pattern", "pattern": workspace + "/**/*.secret"}},
		}}},
		"cwd": uri, "workspaceRoots": []string{uri}, "windowsSandboxLevel": "disabled",
	})
	if err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Dir(workspace)+"/vault", 0o755); err != nil {
		return err
	}
	return os.WriteFile(policyFile(workspace), text, 0o644)
}

// output runs a command in a way, and returns what it prints and how long everything took.
func (b *bench) output(ctx context.Context, w way, workspace string, argv ...string) (string, time.Duration, error) {
	argv = append(w.command(b, workspace), argv...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var complaints strings.Builder
	cmd.Dir, cmd.Stderr = workspace, &complaints
	begun := time.Now()
	out, err := cmd.Output()
	took := time.Since(begun)
	if err != nil {
		return "", 0, fmt.Errorf("%q: %w\n%s", argv, err, complaints.String())
	}
	return string(out), took, nil
}
