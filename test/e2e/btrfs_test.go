package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestSnapshot: whoever owns a subvolume of Btrfs may take a snapshot of it. A command that takes
// one of its workspace does not see in it what the policy denies. The file system is an image,
// mounted in a namespace of its own.
func TestSnapshot(t *testing.T) {
	rig.Tier(t, rig.Merge)
	if os.Getuid() != 0 {
		missing(t, "mounting an image needs uid 0")
	}
	need(t, missing, "mkfs.btrfs", "btrfs", "mount", "unshare", "setpriv")
	base := rig.Value(os.MkdirTemp("", "btrfs"))
	t.Cleanup(func() { os.RemoveAll(base) })
	image, repo := base+"/image", base+"/repo"
	policy := policyIn(repo, policyFile("restricted", readRoot, writeProject, strings.Replace(denySecret, "secret", "vault", 1)))
	rig.Must(t, os.WriteFile(base+"/policy", []byte(policy), 0o644), os.WriteFile(image, nil, 0o644), os.Truncate(image, 256<<20),
		os.Chmod(base, 0o755), os.Mkdir(repo, 0o755))
	install(t, map[string]string{base + "/agent": rig.Agent(t), base + "/escape": escapeBinary(t)})
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
	for _, uid := range []int{0, nobody} {
		rig.Must(t, rig.Command(t, "mkfs.btrfs", "-q", "-f", image).Run())
		state := fmt.Sprint(base, "/state-", uid)
		rig.Must(t, os.Mkdir(state, 0o700), os.Chown(state, uid, uid))
		said := says(t, rig.Command(t, "unshare", "--mount", "--propagation", "private",
			"sh", "-c", script, "sh", image, repo, base, fmt.Sprint(uid)))
		if strings.Contains(said, "not mounted") {
			missing(t, said)
		}
		has(t, said, "free TOPSECRET", "confined operation not permitted")
		rig.Is(t, strings.Count(said, "TOPSECRET"), 1, "uid %d: %s: secrets", uid, said)
	}
}
