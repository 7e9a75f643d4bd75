package hostenv

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestFindAccount(t *testing.T) {
	t.Parallel()
	const passwd = "root:x:0:0:root:/root:/bin/bash\n" +
		"\n" +
		"# comment\n" +
		"short:x:7\n" +
		"word:x:seven:7::/w:/bin/sh\n" +
		"long:x:7:7:a:b:/l:/bin/sh\n" +
		"seven:x:7:7:Seven,,,:/home/seven:/bin/zsh\n" +
		"again:x:7:7::/home/again:/bin/sh\n" +
		"bare:x:8:8:::"
	for _, tt := range []struct {
		uid  int
		want account
	}{
		{0, account{"/root", "/bin/bash"}},
		{7, account{"/home/seven", "/bin/zsh"}},
		{8, account{}},
		{9, account{}},
	} {
		rig.Is(t, findAccount(strings.NewReader(passwd), tt.uid), tt.want, "findAccount(%d)", tt.uid)
	}
	endless := strings.Repeat("x:x:1:1::/:/bin/sh\n", maxPasswdSize/10) + "far:x:7:7::/far:/bin/sh\n"
	rig.Is(t, findAccount(strings.NewReader(endless), 7), (account{}), "beyond the bound")
}

func TestChooseShell(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program := func(path string, mode os.FileMode) string {
		path = filepath.Join(dir, path)
		rig.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		rig.Must(t, os.WriteFile(path, []byte("#!/bin/sh\n"), mode))
		return path
	}
	for _, name := range []string{"all/zsh", "all/bash", "all/sh", "all/pwsh", "all/powershell", "all/cmd", "all/fish", "all/bash5", "all/BASH", "all/bash.exe", "zsh/zsh", "sh/sh", "bash/bash"} {
		program(name, 0o755)
	}
	program("off/bash", 0o644)
	rig.Must(t, os.MkdirAll(filepath.Join(dir, "dir/zsh"), 0o755))
	_, noBash := os.Stat("/bin/bash")
	tests := []struct {
		login, path string // below dir, unless absolute
		name, want  string
		needsBash   bool // of the host
	}{
		{"all/zsh", "", "zsh", "all/zsh", false},
		{"all/bash", "", "bash", "all/bash", false},
		{"all/sh", "", "sh", "all/sh", false},
		{"all/pwsh", "", "powershell", "all/pwsh", false},
		{"all/powershell", "", "powershell", "all/powershell", false},
		{"all/cmd", "", "cmd", "all/cmd", false},
		{"all/bash.exe", "", "bash", "all/bash.exe", false},
		{"all/fish", "bash", "bash", "bash/bash", false},
		{"all/bash5", "bash", "bash", "bash/bash", false},
		{"all/BASH", "bash", "bash", "bash/bash", false},
		{"", "bash", "bash", "bash/bash", false},
		{"", "zsh:bash", "bash", "bash/bash", false},
		{"off/bash", "bash", "bash", "bash/bash", false},
		{"dir/zsh", "zsh", "zsh", "zsh/zsh", false},
		{"/nonexistent/zsh", "bash:zsh", "zsh", "zsh/zsh", false},
		{"/nonexistent/sh", "bash:sh", "sh", "sh/sh", false},
		{"/nonexistent/pwsh", "all", "powershell", "all/pwsh", false},
		{"/nonexistent/fish", "off:bash", "bash", "bash/bash", false},
		{"/nonexistent/fish", "", "bash", "/bin/bash", true},
		{"/nonexistent/sh", "", "sh", "/bin/sh", false},
	}
	below := func(path string) string {
		if path == "" || filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(dir, path)
	}
	for _, tt := range tests {
		if tt.needsBash && noBash != nil {
			continue
		}
		var list []string
		for p := range strings.SplitSeq(tt.path, ":") {
			list = append(list, below(p))
		}
		env := lookup(map[string]string{"PATH": strings.Join(list, ":"), "SHELL": filepath.Join(dir, "all/zsh")})
		name, path := chooseShell(below(tt.login), env)
		rig.Is(t, name+" "+path, tt.name+" "+below(tt.want), "login %q, PATH %q", tt.login, tt.path)
	}
}

func TestShellOfThisHost(t *testing.T) {
	t.Parallel()
	name, path := Shell(os.LookupEnv)
	rig.Is(t, shellKind(path), name, "the kind of %s", path)
	rig.Is(t, filepath.IsAbs(LoginShell()), true, "%q is absolute", LoginShell())
}
