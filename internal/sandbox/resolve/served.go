package resolve

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"

	"github.com/execagent/execagent/internal/sandbox/pathname"
	"github.com/execagent/execagent/sandbox"
	"golang.org/x/sys/unix"
)

// A command can leave a symlink where a later policy has a root. A client that
// names this root means the directory that was there before, and would give the
// next command what the link leads to. checkLinks refuses links that the policy
// itself lets be written. To refuse a link that an earlier command could have
// made, the agent has to remember what earlier commands could write.

const (
	// maxServed is how many writable roots are remembered; the oldest goes first.
	maxServed = 4096
	// maxWarned is how many links the log is warned of.
	maxWarned = 256
)

// Served remembers the writable roots of the commands that an agent has started.
// For each command the agent calls Check and then Note: a policy that was noted
// first could be refused because of itself. The methods may run at once. The zero
// value is ready to use.
type Served struct {
	// Log gets one warning for each symlink which Check lets pass, but which a
	// command of an earlier agent could have made. Nil discards the warnings.
	Log *slog.Logger

	mu     sync.Mutex
	roots  map[objectID]bool
	order  []objectID // of roots, oldest first
	warned map[string]bool
}

// Note remembers what a command may write under r.
func (s *Served) Note(r *Resolved) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.roots == nil {
		s.roots = map[objectID]bool{}
	}
	for _, root := range r.writable {
		if s.roots[root] {
			continue
		}
		if len(s.order) == maxServed {
			delete(s.roots, s.order[0])
			s.order = slices.Delete(s.order, 0, 1)
		}
		s.roots[root] = true
		s.order = append(s.order, root)
	}
}

// Check refuses r if it grants something by way of a symlink that a noted command
// could have made: the link belongs to this user and lies somewhere below a
// directory that the command could write. The error names the path and the link.
func (s *Served) Check(r *Resolved) error {
	for _, c := range r.through {
		below, err := s.isBelowRoot(c.link.Path)
		if err != nil {
			return fmt.Errorf("looking at the symlink %s, by which the sandbox path %s is reached: %w", c.link.Path, c.asked, err)
		}
		if below {
			return fmt.Errorf("the sandbox path %s is reached through the symlink %s -> %s, which an earlier command could have made: "+
				"name what it leads to instead", c.asked, pathname.Clip(c.link.Path), pathname.Clip(c.link.Target))
		}
		s.warn(c)
	}
	return nil
}

// isBelowRoot reports whether name lies somewhere below a root that was noted. It
// compares directories by device and inode number, so a root that was noted under
// another path counts too.
func (s *Served) isBelowRoot(name string) (bool, error) {
	s.mu.Lock()
	empty := len(s.roots) == 0
	s.mu.Unlock()
	if empty {
		return false, nil
	}
	for name != "/" {
		name = pathname.Parent(name)
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return false, err
		}
		s.mu.Lock()
		served := s.roots[identityOf(&st)]
		s.mu.Unlock()
		if served {
			return true, nil
		}
	}
	return false, nil
}

// warn logs once for each link that lies in a directory of this user: a command
// of an earlier agent could have made it, and this agent knows nothing of those.
func (s *Served) warn(c grantedLink) {
	var st unix.Stat_t
	if s.Log == nil || unix.Lstat(pathname.Parent(c.link.Path), &st) != nil || int(st.Uid) != os.Geteuid() {
		return
	}
	s.mu.Lock()
	told := s.warned[c.link.Path] || len(s.warned) == maxWarned
	if !told {
		if s.warned == nil {
			s.warned = map[string]bool{}
		}
		s.warned[c.link.Path] = true
	}
	s.mu.Unlock()
	if !told {
		s.Log.Warn("a path of a sandbox is reached through a symlink in a directory of this user: a command of an earlier agent could have made it",
			"path", pathname.Clip(c.asked), "symlink", pathname.Clip(c.link.Path), "target", pathname.Clip(c.link.Target))
	}
}

// objectID identifies an object of a file system.
type objectID struct{ dev, ino uint64 }

func identityOf(st *unix.Stat_t) objectID { return objectID{dev: st.Dev, ino: st.Ino} }

// grantedLink is a symlink by which a policy grants something.
type grantedLink struct {
	asked string // the path in the policy
	link  sandbox.Link
}

// grants sets the fields of r for Served: the writable directories, and the
// symlinks of this user that lead to something which the policy would not grant
// without them. Links that belong to others, as /bin of the platform may, do not
// count: no command of ours can have made those.
func (s *resolution) grants(r *Resolved) {
	for _, o := range s.seen {
		rule, ok := s.rules[o.path]
		if !o.named && (!o.rule || !ok || o.origin == sandbox.Minimal || rule.Access < sandbox.Read) {
			continue
		}
		if rule.Access == sandbox.Write && o.exists() && o.stat.Mode&unix.S_IFMT == unix.S_IFDIR {
			r.writable = append(r.writable, identityOf(&o.stat))
		}
		if o.path == "/" || !o.named && s.rules.Access(pathname.Parent(o.path)) >= rule.Access {
			continue
		}
		for _, link := range o.links {
			if int(link.stat.Uid) == os.Geteuid() {
				r.through = append(r.through, grantedLink{o.asked, link.Link})
			}
		}
	}
}
