package sandbox

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// All rights of an ABI, each named after the first ABI that has them.
const (
	abi1Rights = 1<<13 - 1
	abi3Rights = 1<<15 - 1
	abi5Rights = 1<<16 - 1
	abi9Rights = 1<<17 - 1
	bothScopes = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
)

func TestRulesets(t *testing.T) {
	t.Parallel()
	const (
		read    = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
		execute = read | unix.LANDLOCK_ACCESS_FS_EXECUTE
		content = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
		device  = unix.LANDLOCK_ACCESS_FS_READ_FILE | content | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
		edit    = read | content | unix.LANDLOCK_ACCESS_FS_REFER | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
			unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_SYM |
			unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR
		list = unix.LANDLOCK_ACCESS_FS_READ_DIR
	)
	devices := []PathRule{
		{Path: "/dev/null", Rights: device}, {Path: "/dev/zero", Rights: device}, {Path: "/dev/full", Rights: device},
		{Path: "/dev/random", Rights: device}, {Path: "/dev/urandom", Rights: device}, {Path: "/dev/tty", Rights: device},
		{Path: "/dev/ptmx", Rights: device},
	}
	readOnly := &Policy{Confined: true, FullRead: true, Rules: []Rule{{Path: "/", Access: Read}}}
	workspace := &Policy{Confined: true, Rules: []Rule{
		{Path: "/", Access: Read},
		{Path: "/repo", Access: Write},
		{Path: "/repo/.git", Access: Read, Origin: Protected},
		{Path: "/repo/vault", Access: Denied},
	}}
	view := &Policy{Confined: true, Rules: []Rule{{Path: "/data", Access: Read}, {Path: "/usr", Access: Read, Origin: Minimal}}}
	private := &Policy{Confined: true, FullRead: true, Rules: []Rule{
		{Path: "/", Access: Read},
		{Path: "/run/agent", Access: Denied, Origin: Private},
		{Path: "/runaway", Access: Denied, Origin: Private},
	}}

	for _, tt := range []struct {
		name string
		got  Ruleset
		want Ruleset
	}{
		{"no landlock", readOnly.ProcessRuleset(0, true), Ruleset{}},
		{"the oldest", readOnly.ProcessRuleset(1, true), Ruleset{FS: abi1Rights, Rules: []PathRule{
			{Path: "/", Rights: execute},
			{Path: "/dev", Rights: abi1Rights},
			{Path: "/proc", Rights: unix.LANDLOCK_ACCESS_FS_WRITE_FILE},
		}}},
		{"read-only, mounted", readOnly.ProcessRuleset(7, true), Ruleset{FS: abi5Rights, Scoped: bothScopes, Rules: []PathRule{
			{Path: "/", Rights: execute},
			{Path: "/dev", Rights: abi5Rights},
			{Path: "/proc", Rights: content},
		}}},
		{"workspace, mounted", workspace.ProcessRuleset(9, true), Ruleset{FS: abi9Rights, Scoped: bothScopes, Rules: []PathRule{
			{Path: "/", Rights: execute},
			{Path: "/dev", Rights: abi5Rights},
			{Path: "/proc", Rights: content},
			{Path: "/repo", Rights: abi9Rights},
		}}},
		{"read-only, alone", readOnly.ProcessRuleset(6, false), Ruleset{FS: abi5Rights, Scoped: bothScopes, Rules: append(slices.Clip(devices),
			PathRule{Path: "/", Rights: execute, Except: []string{"/dev"}},
		)}},
		{"view, alone", view.ProcessRuleset(7, false), Ruleset{FS: abi5Rights, Scoped: bothScopes, Rules: append(slices.Clip(devices),
			PathRule{Path: "/data", Rights: execute},
			PathRule{Path: "/usr", Rights: execute},
		)}},
		{"private, alone", private.ProcessRuleset(7, false), Ruleset{FS: abi5Rights, Scoped: bothScopes, Rules: append(slices.Clip(devices),
			PathRule{Path: "/", Rights: execute, Except: []string{"/dev", "/run/agent", "/runaway"}},
		)}},
		{"helper, read-only", readOnly.HelperRuleset(4), Ruleset{FS: abi3Rights, Rules: []PathRule{
			{Path: "/", Rights: list},
			{Path: "/", Rights: read},
		}}},
		{"helper, workspace", workspace.HelperRuleset(7), Ruleset{FS: abi5Rights, Scoped: bothScopes, Rules: []PathRule{
			{Path: "/", Rights: list},
			{Path: "/", Rights: read},
			{Path: "/repo", Rights: edit},
			{Path: "/repo/.git", Rights: read},
		}}},
		{"helper, view", view.HelperRuleset(99), Ruleset{FS: abi9Rights, Scoped: bothScopes, Rules: []PathRule{
			{Path: "/", Rights: list},
			{Path: "/data", Rights: read},
			{Path: "/usr", Rights: read},
		}}},
		{"devices, alone", (&Policy{Confined: true, Devices: []string{"/dev/x"}}).ProcessRuleset(7, false), Ruleset{FS: abi5Rights, Scoped: bothScopes, Rules: append(slices.Clip(devices),
			PathRule{Path: "/dev/x", Rights: device},
		)}},
		{"sockets, supervisor", (&Policy{Confined: true, Sockets: []string{"/run/s"}}).SupervisorRuleset(9, ""), Ruleset{FS: abi9Rights, Rules: []PathRule{
			{Path: "/", Rights: execute}, {Path: "/dev", Rights: device}, {Path: "/proc", Rights: content}, {Path: "/run", Rights: unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX},
		}}},
		{"nothing", (&Policy{Confined: true}).HelperRuleset(7), Ruleset{FS: abi5Rights, Scoped: bothScopes, Rules: []PathRule{
			{Path: "/", Rights: list},
		}}},
	} {
		rig.Same(t, tt.name, tt.want, tt.got)
	}
}

// TestRulesetTrimmed: no rule asks for what its ruleset does not handle, which
// the kernel would refuse.
func TestRulesetTrimmed(t *testing.T) {
	t.Parallel()
	p := &Policy{Confined: true, Rules: []Rule{{Path: "/", Access: Read}, {Path: "/repo", Access: Write}}}
	for abi := range 20 {
		for _, r := range []Ruleset{p.HelperRuleset(abi), p.ProcessRuleset(abi, true), p.ProcessRuleset(abi, false)} {
			rig.Is(t, r.FS == 0, abi == 0, "abi %d handles nothing", abi)
			for _, rule := range r.Rules {
				if rule.Rights == 0 || rule.Rights&^r.FS != 0 {
					t.Errorf("abi %d, %s: rights %#x of %#x", abi, rule.Path, rule.Rights, r.FS)
				}
			}
		}
	}
}

// TestLandlockNumbers: the rights and scopes are the kernel's.
func TestLandlockNumbers(t *testing.T) {
	t.Parallel()
	for _, n := range []struct {
		name      string
		got, want uint64
	}{
		{"EXECUTE", fsExecute, unix.LANDLOCK_ACCESS_FS_EXECUTE},
		{"WRITE_FILE", fsWriteFile, unix.LANDLOCK_ACCESS_FS_WRITE_FILE},
		{"READ_FILE", fsReadFile, unix.LANDLOCK_ACCESS_FS_READ_FILE},
		{"READ_DIR", fsReadDir, unix.LANDLOCK_ACCESS_FS_READ_DIR},
		{"REMOVE_DIR", fsRemoveDir, unix.LANDLOCK_ACCESS_FS_REMOVE_DIR},
		{"REMOVE_FILE", fsRemoveFile, unix.LANDLOCK_ACCESS_FS_REMOVE_FILE},
		{"MAKE_DIR", fsMakeDir, unix.LANDLOCK_ACCESS_FS_MAKE_DIR},
		{"MAKE_REG", fsMakeReg, unix.LANDLOCK_ACCESS_FS_MAKE_REG},
		{"MAKE_SYM", fsMakeSym, unix.LANDLOCK_ACCESS_FS_MAKE_SYM},
		{"REFER", fsRefer, unix.LANDLOCK_ACCESS_FS_REFER},
		{"TRUNCATE", fsTruncate, unix.LANDLOCK_ACCESS_FS_TRUNCATE},
		{"IOCTL_DEV", fsIoctlDev, unix.LANDLOCK_ACCESS_FS_IOCTL_DEV},
		{"RESOLVE_UNIX", fsResolveUnix, unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX},
		{"SCOPE_ABSTRACT_UNIX_SOCKET", scopeAbstractUnixSocket, unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET},
		{"SCOPE_SIGNAL", scopeSignal, unix.LANDLOCK_SCOPE_SIGNAL},
	} {
		rig.Is(t, n.got, n.want, "%s", n.name)
	}
}
