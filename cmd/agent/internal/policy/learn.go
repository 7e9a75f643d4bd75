package policy

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/execagent/execagent/internal/sandbox/changes"
	"github.com/execagent/execagent/internal/sandbox/pathname"
	"github.com/execagent/execagent/sandbox"
)

// Learning returns the profile of a command whose needs are to be found out: that of the plan, with which the
// command can also write in the home, in its directory and in temporary folders. What the plan hides stays hidden.
func (p *Plan) Learning(h Host) (sandbox.Profile, error) {
	home, err := h.real(h.Home)
	if err != nil || !path.IsAbs(h.Home) || home == "/" {
		return sandbox.Profile{}, fmt.Errorf("--learn: HOME=%q is not the folder of a user", h.Home)
	}
	wide := p.Profile
	wide.Strict = false
	wide.WorkspaceRoots = append(slices.Clip(wide.WorkspaceRoots), h.Cwd)
	wide.Entries = append(slices.Clip(wide.Entries), sandbox.Entry{Path: home, Access: sandbox.Write})
	for _, place := range []sandbox.Place{sandbox.PlaceProjectRoots, sandbox.PlaceSlashTmp, sandbox.PlaceTmpDir} {
		wide.Entries = append(wide.Entries, sandbox.Entry{Place: place, Access: sandbox.Write})
	}
	return wide, nil
}

// Apart returns the folders that no profile should let a command write as a whole, with those in them.
func (p *Plan) Apart(h Host) (all []string) {
	for _, name := range []string{h.Home, h.Cwd} {
		if real, err := h.real(name); err == nil {
			all = append(all, real)
		}
	}
	return all
}

// Learned is what a command has done that a plan does not allow.
type Learned struct {
	Write []changes.Folder // folders to write in, as in a profile
	Allow []string         // hosts, as in a profile
	Notes []string         // what no profile should say
}

// Learned returns what the command has done in folders; more changes were not noted. hosts are those that it has
// reached and that the flags do not allow.
func (p *Plan) Learned(h Host, folders []changes.Folder, more int, hosts []string) (*Learned, error) {
	policy, err := p.followed(h).Compile()
	if err != nil {
		return nil, err
	}
	real := func(name string) string {
		if found, err := h.real(name); err == nil {
			return found
		}
		return name
	}
	home, cwd := real(h.Home), real(h.Cwd)
	short := func(name string) string {
		if name == home {
			return "~"
		}
		return h.tilde(name)
	}
	temporary := []string{"/tmp"}
	if h.TmpDir != "" {
		temporary = append(temporary, real(h.TmpDir))
	}
	l, write, noted, inCwd := &Learned{Allow: hosts}, map[string]string{}, map[string]bool{}, false
	for _, f := range folders {
		folder := f.Path
		if policy.Access(folder) >= sandbox.Write {
			continue
		}
		for folder != "/" && !h.exists(folder) { // it was removed again, and may have another name the next time
			folder = pathname.Parent(folder)
		}
		at := slices.IndexFunc(temporary, func(dir string) bool { return pathname.Within(folder, dir) })
		switch {
		case pathname.Within(folder, cwd):
			inCwd = true
		case at >= 0 && !pathname.Within(folder, home):
			write[temporary[at]] = f.Changed
		case pathname.Within(home, folder), !isPrintable(folder):
			if !noted[folder] {
				noted[folder] = true
				l.Notes = append(l.Notes, fmt.Sprintf("%q was changed, and no profile should let a command write all of %q", short(f.Changed), short(folder)))
			}
		default:
			write[folder] = f.Changed
		}
	}
	last := ""
	for _, folder := range slices.Sorted(maps.Keys(write)) {
		if last == "" || !pathname.Below(folder, last) {
			l.Write, last = append(l.Write, changes.Folder{Path: short(folder), Changed: short(write[folder])}), folder
		}
	}
	if inCwd {
		l.Notes = append(l.Notes, fmt.Sprintf("files in %q were changed: add --workspace for it", short(cwd)))
	}
	if more > 0 {
		l.Notes = append(l.Notes, fmt.Sprintf("%d more changes were in too many folders to be noted", more))
	}
	return l, nil
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
