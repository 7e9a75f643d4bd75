package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestSnapshot: whoever owns a subvolume of Btrfs may take a snapshot of it. A command that takes
// one of its workspace does not see in it what the policy denies. The file system is an image,
// mounted in a namespace of its own.
func TestSnapshot(t *testing.T) {
	rig.Tier(t, rig.Merge)
	missing := func(why any) {
		t.Helper()
		if os.Getenv("CI") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	if os.Getuid() != 0 {
		missing("mounting an image needs uid 0")
	}
	for _, program := range []string{"mkfs.btrfs", "btrfs", "mount", "unshare", "setpriv"} {
		if _, err := exec.LookPath(program); err != nil {
			missing(err)
		}
	}
	base, err := os.MkdirTemp("", "btrfs")
	rig.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(base) })
	image, repo := base+"/image", base+"/repo"
	policy, err := json.Marshal(map[string]any{
		"windowsSandboxLevel": "disabled",
		"permissions": map[string]any{"type": "managed", "network": "restricted", "file_system": map[string]any{
			"type": "restricted",
			"entries": []any{
				map[string]any{"access": "read", "path": map[string]any{"type": "special", "value": map[string]any{"kind": "root"}}},
				map[string]any{"access": "write", "path": map[string]any{"type": "path", "path": "file://" + repo}},
				map[string]any{"access": "deny", "path": map[string]any{"type": "path", "path": "file://" + repo + "/vault"}},
			},
		}},
	})
	for name, content := range map[string]string{"policy": string(policy), "image": ""} {
		if err == nil {
			err = os.WriteFile(base+"/"+name, []byte(content), 0o644)
		}
	}
	if err == nil {
		err = os.Chmod(base, 0o755)
	}
	for from, to := range map[string]string{rig.Agent(t): "agent", escapeBinary(t): "escape"} {
		var program []byte
		if err == nil {
			program, err = os.ReadFile(from)
		}
		if err == nil {
			err = rig.WriteProgram(base+"/"+to, program)
		}
	}
	if err == nil {
		err = os.Mkdir(repo, 0o755)
	}
	if err == nil {
		err = os.Truncate(image, 256<<20)
	}
	rig.Must(t, err)
	// Without the sandbox first, as the owner of the subvolume, to see that the program can take
	// a snapshot here at all.
	const script = `
		mount -o loop "$1" "$2" || { echo not mounted; exit; }
		mkdir "$2/vault"; echo TOPSECRET >"$2/vault/secret"; chown -R "$4" "$2"
		as="setpriv --reuid $4 --regid $4 --clear-groups --no-new-privs"
		echo "free $($as unshare -Ur "$3/free" "$2")"
		rm -rf "$2/snapshot" 2>/dev/null || mv "$2/snapshot" "$2/taken"
		echo "confined $($as "$3/agent" sandbox --state-dir "$3/state-$4" --policy "$3/policy" -- "$3/escape" snapshot "$2" 2>&1)"
		umount "$2"`
	// free takes a snapshot without being confined.
	const free = "#!/bin/sh\nbtrfs subvolume snapshot \"$1\" \"$1/snapshot\" >/dev/null 2>&1; cat \"$1/snapshot/vault/secret\"\n"
	rig.Must(t, rig.WriteProgram(base+"/free", []byte(free)))
	for _, uid := range []string{"0", "65534"} {
		if out, err := rig.Command(t, "mkfs.btrfs", "-q", "-f", image).CombinedOutput(); err != nil {
			t.Fatalf("mkfs.btrfs: %v\n%s", err, out)
		}
		rig.Must(t, os.Mkdir(base+"/state-"+uid, 0o700))
		if out, err := rig.Command(t, "chown", uid+":"+uid, base+"/state-"+uid).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		out, err := rig.Command(t, "unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", image, repo, base, uid).CombinedOutput()
		said := string(out)
		if strings.Contains(said, "not mounted") {
			missing(said)
		}
		if err != nil || !strings.Contains(said, "free TOPSECRET") || !strings.Contains(said, "confined operation not permitted") || strings.Count(said, "TOPSECRET") != 1 {
			t.Errorf("uid %s: %v: %s", uid, err, said)
		}
	}
}
