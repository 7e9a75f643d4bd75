package hostenv

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestFindAccount(t *testing.T) {
	t.Parallel()
	passwd, groups := filepath.Join(t.TempDir(), "passwd"), filepath.Join(t.TempDir(), "group")
	fill := strings.Repeat("x:x:1:a,b,c,d,e,f,g\n", maxAccountLine/16) // more than a line may have
	rig.Must(t, os.WriteFile(groups, []byte("seven:x:70:other\n"+fill+"late:x:71:other,seven\n"), 0o666), os.WriteFile(passwd, []byte(
		"root:x:0:0:root:/root:/bin/bash\n\n# comment\nshort:x:7\nword:x:seven:7::/w:/bin/sh\nlong:x:7:7:a:b:/l:/bin/sh\n"+
			"seven:x:7:7:Seven,,,:/home/seven:/bin/zsh\nagain:x:7:7::/home/again:/bin/sh\n:x:9:9::/no-name:/bin/sh\nbare:x:8:8:::"), 0o666))
	for _, tt := range [][3]string{ // user, group, what is found
		{"root", "", "&{0 0 [0] root /root /bin/bash}"},
		{"7", "", "&{7 7 [71 7] seven /home/seven /bin/zsh}"},
		{"seven", "late", "&{7 71 [71 7] seven /home/seven /bin/zsh}"},
		{"8", "5", "&{8 5 [8] bare  }"},
		{"9", "late", "&{9 71 []   }"},
		{"9", "", "group: the user 9 is not in " + passwd + ", so a group has to be named"},
		{"word", "", `user: "word" is neither in ` + passwd + " nor a number"},
		{"4294967295", "seven", `user: "4294967295" is neither in ` + passwd + " nor a number"},
	} {
		a, err := findAccount(passwd, groups, tt[0], tt[1])
		got := fmt.Sprint(a)
		if err != nil {
			got = err.Error()
		}
		rig.Is(t, got, tt[2], "%q %q", tt[0], tt[1])
	}
	rig.Must(t, os.Truncate(groups, int64(len(fill))+2*maxAccountLine))
	rig.Says(t, rig.Err(findAccount(passwd, groups, "7", "")), "group: "+groups+" has a line of more than", "a list that is cut")
	rig.Says(t, rig.Err(findAccount(passwd, os.DevNull, "7", "")), "group: "+os.DevNull+" is not a regular file", "a FIFO or a device")
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
