package policy

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/execagent/execagent/internal/sandbox/changes"
	"github.com/execagent/execagent/internal/sandbox/pathname"
	"github.com/execagent/execagent/sandbox"
)

// Learning is about a command whose needs are to be found out. Its paths are as they were before the command ran,
// because the command can change links.
type Learning struct {
	Profile sandbox.Profile // that of the command

	plan      *sandbox.Policy // what the flags allow
	home      string
	work      string   // the directory of the command; "": the home is in it, or is it
	temporary []string // /tmp, and TMPDIR if the home is not in it
	secrets   []string // where programs keep secrets, also if there are none yet
}

// Learning returns what a command can do whose needs are to be found out: what the plan says, and write in the
// home, in its directory and in temporary folders. Where a flag, a profile or a secret of the plan is about such a
// folder, or about one around it, the plan decides. The host is this one.
func (p *Plan) Learning(h Host) (*Learning, error) {
	home, err := h.real(h.Home)
	if err != nil || !path.IsAbs(h.Home) || home == "/" {
		return nil, fmt.Errorf("--learn: HOME=%q is not the folder of a user", h.Home)
	}
	l := &Learning{Profile: p.led(h), home: home, temporary: []string{h.lead("/tmp")}}
	if work := h.lead(h.Cwd); !pathname.Within(home, work) {
		l.work = work
	}
	if dir := h.lead(h.TmpDir); path.IsAbs(h.TmpDir) && !pathname.Within(home, dir) {
		l.temporary = append(l.temporary, dir)
	}
	for _, row := range slices.Concat(secretFiles, histories) {
		for _, name := range h.places(row.path) {
			l.secrets = append(l.secrets, h.lead(name))
		}
	}
	if l.plan, err = l.Profile.Compile(); err != nil {
		return nil, err
	}
	for i, place := range []sandbox.Place{sandbox.PlaceSlashTmp, sandbox.PlaceTmpDir}[:len(l.temporary)] {
		l.widen(l.temporary[i], sandbox.Entry{Place: place})
	}
	l.widen(home, sandbox.Entry{Path: home})
	if l.work != "" {
		l.widen(l.work, sandbox.Entry{Path: l.work})
	}
	// Names such as .git are protected at the top of a writable folder, and a repository may begin above.
	for _, root := range append(slices.Clone(l.Profile.WorkspaceRoots), l.work) {
		for pathname.Below(root, home) && pathname.Parent(root) != home {
			root = pathname.Parent(root)
			l.widen(root, sandbox.Entry{Path: root})
		}
	}
	return l, nil
}

// widen lets the command write in a folder, unless the plan is about it.
func (l *Learning) widen(name string, e sandbox.Entry) {
	if !slices.ContainsFunc(l.plan.Rules, func(r sandbox.Rule) bool { return r.Path != "/" && pathname.Within(name, r.Path) }) {
		e.Access = sandbox.Write
		l.Profile.Entries = append(l.Profile.Entries, e)
	}
}

// Apart returns the folders that no profile should let a command write as a whole, with those in them, for
// [changes.New].
func (l *Learning) Apart() []string {
	if l.work == "" {
		return []string{l.home}
	}
	return []string{l.home, l.work}
}

// led returns the profile with the paths that its links lead to. A policy refuses a path through a link in a folder
// that the command can write.
func (p *Plan) led(h Host) sandbox.Profile {
	all := p.Profile
	all.Entries, all.WorkspaceRoots, all.Sockets = slices.Clone(all.Entries), slices.Clone(all.WorkspaceRoots), slices.Clone(all.Sockets)
	for i, e := range all.Entries {
		switch e.Place {
		case sandbox.PlacePath:
			all.Entries[i].Path = h.lead(e.Path)
		case sandbox.PlaceGlob:
			fixed := e.Path[:strings.LastIndexByte(e.Path[:strings.IndexAny(e.Path+`\`, wildcards+`\`)], '/')+1]
			if path.IsAbs(fixed) && fixed != "/" {
				all.Entries[i].Path = escape.Replace(h.lead(path.Clean(fixed))) + "/" + e.Path[len(fixed):]
			}
		}
	}
	for _, list := range [][]string{all.WorkspaceRoots, all.Sockets} {
		for i, name := range list {
			list[i] = h.lead(name)
		}
	}
	if path.IsAbs(all.TmpDir) {
		all.TmpDir = h.lead(all.TmpDir)
	}
	return all
}

// lead returns the path that the links of an absolute path lead to, as far as it exists.
func (h Host) lead(name string) string {
	name = path.Clean(name)
	for at := name; ; at = pathname.Parent(at) {
		if real, err := h.real(at); err == nil {
			return path.Join(real, strings.TrimPrefix(name, at))
		}
		if at == "/" {
			return name
		}
	}
}

// Learned is what a command has done that a plan does not allow.
type Learned struct {
	Write []changes.Folder // folders to write in, as in a profile
	Allow []string         // hosts, as in a profile
	Notes []string         // what no profile should say
}

// Learned returns what the command has done in folders; more changes were not noted. hosts are those that it has
// reached and that the flags do not allow. The command has ended, and may have left links in place of folders.
func (l *Learning) Learned(folders []changes.Folder, more int, hosts []string) *Learned {
	short := func(name string) string {
		if pathname.Within(name, l.home) {
			return "~" + name[len(l.home):]
		}
		return name
	}
	write, inWork := map[string]string{}, false
	notes := map[string][]string{} // quoted paths, by what is said of them
	for _, f := range folders {
		folder := f.Path
		if l.plan.Access(folder) >= sandbox.Write {
			continue
		}
		for folder != "/" && !isFolder(folder) { // it may have another name the next time
			folder = pathname.Parent(folder)
		}
		at := slices.IndexFunc(l.temporary, func(dir string) bool {
			return pathname.Within(folder, dir) && !pathname.Within(l.home, dir) && !pathname.Within(folder, l.home)
		})
		why := ""
		switch {
		case l.work != "" && pathname.Within(folder, l.work):
			inWork = true
			continue
		case at >= 0:
			folder = l.temporary[at]
		case pathname.Within(l.home, folder):
			why = fmt.Sprintf("no profile should let a command write all of %q", short(folder))
		case isTrusted(folder):
			why = "programs outside of the sandbox trust what is there"
		case slices.ContainsFunc(l.secrets, func(secret string) bool { return pathname.Within(folder, secret) }):
			why = "programs keep secrets there"
		case !isPrintable(folder) || strings.ContainsAny(folder, wildcards):
			why = fmt.Sprintf("no profile can name %q", short(folder))
		}
		if why == "" {
			write[folder] = f.Changed
		} else {
			notes[why] = append(notes[why], strconv.Quote(short(f.Changed)))
		}
	}
	learned := &Learned{Allow: hosts}
	last := ""
	for _, folder := range slices.Sorted(maps.Keys(write)) {
		if last == "" || !pathname.Below(folder, last) {
			learned.Write, last = append(learned.Write, changes.Folder{Path: short(folder), Changed: short(write[folder])}), folder
		}
	}
	for _, why := range slices.Sorted(maps.Keys(notes)) {
		learned.note("changed, but %s: %s", why, listed(notes[why]))
	}
	if inWork {
		learned.note("files in %q were changed: add --workspace for it", short(l.work))
	}
	if more > 0 {
		learned.note("%d more changes were in too many folders to be noted", more)
	}
	if left := len(learned.Write) - maxWords; left > 0 {
		learned.Write = learned.Write[:maxWords]
		learned.note("a profile can have %d folders, and %d more were changed", maxWords, left)
	}
	if left := len(hosts) - maxWords; left > 0 {
		learned.Allow = hosts[:maxWords]
		learned.note("a profile can have %d hosts, and %d more were reached", maxWords, left)
	}
	return learned
}

func (l *Learned) note(format string, args ...any) {
	l.Notes = append(l.Notes, fmt.Sprintf(format, args...))
}

// isFolder reports whether there is a folder at a path without links. A profile with a link in its place would let
// the command write wherever the link leads.
func isFolder(name string) bool {
	real, err := filepath.EvalSymlinks(name)
	if err != nil || real != name {
		return false
	}
	info, err := os.Lstat(name)
	return err == nil && info.IsDir()
}

// isTrusted reports whether a path has a protected name, such as .git.
func isTrusted(name string) bool {
	return slices.ContainsFunc(strings.Split(name, "/"), func(part string) bool { return slices.Contains(sandbox.ProtectedNames(), part) })
}

// isPrintable reports whether a profile can have the path as it is.
func isPrintable(name string) bool {
	return strings.IndexFunc(name, func(r rune) bool { return !strconv.IsPrint(r) || r == unicode.ReplacementChar }) < 0
}

// Profile returns the text of a profile that allows this; "" if it would be empty.
func (l *Learned) Profile() string {
	var b strings.Builder
	if len(l.Write) > 0 {
		b.WriteString("write = [\n")
		for _, f := range l.Write {
			changed := ""
			if f.Changed != f.Path && isPrintable(f.Changed) {
				changed = " # " + f.Changed
			}
			fmt.Fprintf(&b, "    %q,%s\n", f.Path, changed)
		}
		b.WriteString("]\n")
	}
	if len(l.Allow) > 0 {
		b.WriteString("allow = [\n")
		for _, host := range l.Allow {
			fmt.Fprintf(&b, "    %q,\n", host)
		}
		b.WriteString("]\n")
	}
	return b.String()
}
