package view

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"

	"github.com/execagent/execagent/internal/sandbox/pathname"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/sandbox"
	"golang.org/x/sys/unix"
)

// Options say what a view shows in addition to the policy.
type Options struct {
	// FreshProc mounts a procfs of the caller's pid namespace, which must be
	// new. Without it, the view has the procfs of the old root, read-only.
	FreshProc bool
	// Terminal is the path of the terminal to be shown as /dev/console; "" none.
	Terminal string
	// Sockets are the canonical paths of sockets that are covered where the
	// policy makes them readable but not writable. Missing ones are skipped.
	Sockets []string
	// Resolver shows files that lead programs to the resolver of a command whose connections are
	// transparent, and hides the sockets of the services that look names up.
	Resolver bool
	// ShmBytes is the size of /dev/shm; 0 is 256 MiB.
	ShmBytes int64
}

// Mounted is a mount that a view depends on: without it, the path would have
// another access than the policy says.
type Mounted struct {
	Path string // its path in the view, canonical
	ID   uint64 // statx(2), STATX_MNT_ID; proc_pid_mountinfo(5)
}

// Enter gives the calling process, with all its threads, a root directory in
// which every path has the access of the policy (sandbox.md 14.2 and 14.3), and
// releases the old root. Afterwards the working directory is "/".
//
// It returns the mounts that must stay. If an outside process removes, replaces or
// renames the object that a mount is on, the kernel detaches the mount or moves it
// along. That can happen as soon as the mount is made. So the caller checks that
// all of them are in place before anything relies on the view, and keeps checking.
//
// The process must be alone in new user and mount namespaces, with
// CAP_SYS_ADMIN, and CAP_DAC_OVERRIDE if its own files may be inaccessible to
// it. It needs open_tree, move_mount and mount_setattr (Linux 5.12). After an
// error the process is unusable, because the root may be half made.
//
// r must have been resolved in these namespaces, and placeholders must be held at
// the names in r.Missing.
func Enter(r *resolve.Resolved, o Options) ([]Mounted, error) {
	if !r.Policy.Confined {
		return nil, errors.New("mounting the view: the policy does not restrict files")
	}
	b := &builder{resolved: r, options: o, found: map[string]int{}}
	defer b.close()
	defer unix.Umask(unix.Umask(0))
	err := b.enter()
	if errors.Is(err, unix.ENOSYS) {
		err = fmt.Errorf("%w (the mount calls of Linux 5.12 are needed)", err)
	}
	return b.made, err
}

// builder builds a view. Its descriptors are closed by close.
type builder struct {
	resolved *resolve.Resolved
	options  Options
	original int            // the root as it was
	found    map[string]int // O_PATH descriptors of the existing objects, by canonical path
	view     int            // the mount that becomes the new root
	masks    masks
	made     []Mounted
	fds      []int
}

// mount is a descriptor of a mount that attach can mount somewhere.
type mount int

func (b *builder) enter() error {
	// From here on, no mount that is made in another namespace shows up here,
	// and none of ours shows up there.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return mountError("nothing", "/", "making it private", err)
	}
	var err error
	if b.original, err = b.keep(unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)); err != nil {
		return mountError("the base", "/", "open", err)
	}
	plan, err := b.look()
	if err != nil {
		return err
	}
	sources, err := b.sources(plan)
	if err != nil {
		return err
	}
	if err := b.makeMasks(plan); err != nil {
		return err
	}
	// On top of the old root: the calls below need mounts that are attached
	// in this namespace, and "/" is the one place that is always there.
	if err := attach(mount(b.view), b.original); err != nil {
		return mountError("the base", "/", "move_mount", err)
	}
	for i := range plan.steps {
		if err := b.step(&plan.steps[i], sources); err != nil {
			return err
		}
	}
	if b.options.Resolver {
		if err := b.showResolver(); err != nil {
			return err
		}
	}
	if plan.base < sandbox.Read {
		if err := restrict(mount(b.view), unix.MOUNT_ATTR_RDONLY, 0); err != nil {
			return mountError("the base", "/", "making it read-only", err)
		}
	}
	return b.pivot()
}

// look finds the objects at the paths of the policy, and makes the plan.
func (b *builder) look() (*viewPlan, error) {
	s := sights{
		kinds:      map[string]objectKind{},
		sockets:    b.options.Sockets,
		runtimeDir: "/run/user/" + strconv.Itoa(os.Getuid()),
		resolver:   b.options.Resolver,
		named:      b.resolved.Policy.Sockets,
	}
	for _, name := range s.named {
		if err := b.find(name, s.kinds); err != nil {
			return nil, err
		}
	}
	for _, rule := range b.resolved.Policy.Rules {
		if err := b.find(rule.Path, s.kinds); err != nil {
			return nil, err
		}
		for dir := rule.Path; s.kinds[dir] == absent && dir != "/"; {
			dir = pathname.Parent(dir)
			if err := b.find(dir, s.kinds); err != nil {
				return nil, err
			}
		}
		if rule.Origin == sandbox.Protected && s.kinds[rule.Path] == directory {
			empty, err := isEmpty(b.found[rule.Path])
			if err != nil {
				return nil, mountError("the rule", rule.Path, "listing it", err)
			}
			if empty {
				s.kinds[rule.Path] = emptyDirectory
			}
		}
	}
	for _, m := range b.resolved.Missing {
		if err := b.find(path.Join(m.Parent, m.Name), s.kinds); err != nil {
			return nil, err
		}
	}
	var err error
	if s.aliases, err = resolve.PrivateAliases(b.original, b.resolved.Policy.Private); err != nil {
		return nil, err
	}
	for _, name := range s.aliases {
		if err := b.find(name, s.kinds); err != nil {
			return nil, err
		}
	}
	if s.globbed, s.crowded, err = deniedFiles(b.original, b.resolved.Policy); err != nil {
		return nil, err
	}
	return planView(b.resolved, s)
}

// find opens the object at name in the original root, and notes its kind. A
// symlink on the way is an error, because name is canonical, so the link is new.
func (b *builder) find(name string, kinds map[string]objectKind) error {
	if _, known := kinds[name]; known {
		return nil
	}
	kinds[name] = absent
	fd, err := resolve.OpenBeneath(b.original, name, 0)
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR:
		return nil
	case unix.EACCES:
		// The confined process has fewer capabilities, so it cannot reach this
		// either, unless the owner of a directory on the way lets it later. If a
		// rule needs a placeholder there, planning fails because there is none.
		return nil
	default:
		return mountError("the rule", name, "open", err)
	}
	b.found[name] = fd
	b.fds = append(b.fds, fd)
	switch mode, err := resolve.FileKind(fd); {
	case err != nil:
		return mountError("the rule", name, "fstat", err)
	case mode == unix.S_IFDIR:
		kinds[name] = directory
	default:
		kinds[name] = file
	}
	return nil
}

// sources makes the base and clones the visible parts of the original root,
// before anything is attached.
func (b *builder) sources(plan *viewPlan) (map[string]mount, error) {
	base, err := b.base(plan)
	if err != nil {
		return nil, err
	}
	if b.view, err = b.keep(int(base), nil); err != nil {
		return nil, err
	}
	sources := map[string]mount{}
	for i := range plan.steps {
		s := &plan.steps[i]
		if s.do != bindWrite && s.do != bindRead {
			continue
		}
		m, err := clone(b.found[s.path], attrsOf(s.do == bindWrite))
		if err != nil {
			return nil, mountError(s.do.String(), s.path, "", err)
		}
		b.fds = append(b.fds, int(m))
		sources[s.path] = m
	}
	return sources, nil
}

// base makes the mount that becomes the root: a clone of the original one or an
// empty file system. The caller closes it.
func (b *builder) base(plan *viewPlan) (mount, error) {
	if plan.base >= sandbox.Read {
		m, err := clone(b.original, attrsOf(plan.base == sandbox.Write))
		return m, mountError("the base", "/", "", err)
	}
	fd, err := newFilesystem("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, "mode", "0755", "size", "1m")
	if err != nil {
		return -1, mountError("an empty base", "/", "", err)
	}
	err = makeSpots(fd, "", "/", plan.inside, 0o700)
	if err == nil && plan.base == sandbox.Denied {
		err = unix.Fchmodat(fd, ".", 0o111, 0)
	}
	if err != nil {
		unix.Close(fd)
		return -1, mountError("an empty base", "/", "", err)
	}
	return mount(fd), nil
}

// step makes the mounts of one step.
func (b *builder) step(s *step, sources map[string]mount) error {
	target, err := resolve.OpenBeneath(b.view, s.path, 0)
	if s.optional && (err == unix.ENOENT || err == unix.ENOTDIR || err == unix.EACCES) {
		return nil // the confined process cannot reach it either
	}
	if err != nil {
		return mountError(s.do.String(), s.path, "opening the place", err)
	}
	defer unix.Close(target)
	var m mount
	switch s.do {
	case bindWrite, bindRead:
		m = sources[s.path]
	case seal:
		m, err = clone(target, unix.MOUNT_ATTR_RDONLY)
	case pin:
		m, err = clone(target, 0)
	case deny, hollow, mute:
		if m, err = b.masks.cover(s, target); m < 0 && err == nil {
			return nil
		}
	case devices:
		return b.devices(s, target)
	case procfs:
		return b.procfs(target)
	}
	if err != nil {
		return mountError(s.do.String(), s.path, "", err)
	}
	err = attach(m, target)
	if err == nil && s.keepsAccess() {
		err = b.note(s.path, m)
	}
	if s.do != bindWrite && s.do != bindRead {
		unix.Close(int(m))
	}
	if s.optional && err == unix.ENOENT {
		return nil // it was removed meanwhile
	}
	return mountError(s.do.String(), s.path, "move_mount", err)
}

// note adds a mount to those that must stay.
func (b *builder) note(path string, m mount) error {
	id, err := mountID(int(m))
	b.made = append(b.made, Mounted{path, id})
	return err
}

// mountID returns the id of the mount that fd is on.
func mountID(fd int) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return 0, fmt.Errorf("statx: %w", err)
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return 0, fmt.Errorf("statx gives no mount id: %w", unix.ENOSYS)
	}
	return st.Mnt_id, nil
}

// pivot makes the view the root of the process.
func (b *builder) pivot() error {
	if err := unix.Fchdir(b.view); err != nil {
		return mountError("the view", "/", "fchdir", err)
	}
	// The old root ends up on top of the new one; uncover unmounts it.
	if err := unix.PivotRoot(".", "."); err != nil {
		return mountError("the view", "/", "pivot_root", err)
	}
	if err := b.uncover(); err != nil {
		return mountError("the view", "/", "detaching the old root", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return mountError("the view", "/", "chdir", err)
	}
	return nil
}

// maxStacked is how many mounts there may be on top of the new root: the old
// root, the masks on it, and what the host had on its root.
const maxStacked = 16

// uncover unmounts everything on top of the new root, the topmost mount first. If
// anything were left, ".." would lead there.
func (b *builder) uncover() error {
	view, err := mountID(b.view)
	if err != nil {
		return err
	}
	for range maxStacked {
		var top unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, "/..", 0, unix.STATX_MNT_ID, &top); err != nil {
			return fmt.Errorf("statx: %w", err)
		}
		if top.Mnt_id == view {
			return nil
		}
		if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
			return err
		}
	}
	return fmt.Errorf("there are more than %d mounts on it", maxStacked)
}

// clone copies the mount at fd and those below it, and adds attrs to all of them.
// No attribute is ever cleared: what was read-only stays read-only. The caller
// closes the mount.
func clone(fd int, attrs uint64) (mount, error) {
	m, err := unix.OpenTree(fd, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, fmt.Errorf("open_tree: %w", err)
	}
	if attrs == 0 {
		return mount(m), nil
	}
	if err := restrict(mount(m), attrs, unix.AT_RECURSIVE); err != nil {
		unix.Close(m)
		return -1, fmt.Errorf("mount_setattr: %w", err)
	}
	return mount(m), nil
}

// keep notes a descriptor for close.
func (b *builder) keep(fd int, err error) (int, error) {
	if err != nil {
		return -1, err
	}
	b.fds = append(b.fds, fd)
	return fd, nil
}

func (b *builder) close() {
	for _, fd := range b.fds {
		unix.Close(fd)
	}
}

// attrsOf returns the attributes of a mount that shows a part of the original
// root.
func attrsOf(writable bool) uint64 {
	if writable {
		return unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	}
	return unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
}

// restrict adds attributes to a mount.
func restrict(m mount, attrs uint64, flags uint) error {
	return unix.MountSetattr(int(m), "", unix.AT_EMPTY_PATH|flags, &unix.MountAttr{Attr_set: attrs})
}

// attach mounts m on what target refers to.
func attach(m mount, target int) error {
	return unix.MoveMount(int(m), "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// attachAt mounts m on the name in dir, a directory of ours.
func attachAt(m mount, dir int, name string) error {
	if err := unix.MoveMount(int(m), "", dir, name, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// isEmpty reports whether the directory of the O_PATH descriptor fd is empty.
func isEmpty(fd int) (bool, error) {
	dir, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == unix.EACCES {
		return false, nil // the confined process cannot see its contents either
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(dir)
	buf := make([]byte, 1<<10)
	for {
		n, err := unix.Getdents(dir, buf)
		if err != nil || n == 0 {
			return err == nil, err
		}
		for rest := buf[:n]; len(rest) > 0; {
			var name string
			if name, _, rest = nextEntry(rest); name != "." && name != ".." {
				return false, nil
			}
		}
	}
}

// newFilesystem makes a new instance of a file system, with pairs of options: a
// name and its value. The caller closes the mount.
func newFilesystem(kind string, attrs int, options ...string) (int, error) {
	config, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen %s: %w", kind, err)
	}
	defer unix.Close(config)
	for option := range slices.Chunk(options, 2) {
		if err := unix.FsconfigSetString(config, option[0], option[1]); err != nil {
			return -1, fmt.Errorf("fsconfig %s %s=%s: %w", kind, option[0], option[1], err)
		}
	}
	if err := unix.FsconfigCreate(config); err != nil {
		return -1, fmt.Errorf("fsconfig %s create: %w", kind, err)
	}
	fd, err := unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, attrs)
	if err != nil {
		return -1, fmt.Errorf("fsmount %s: %w", kind, err)
	}
	return fd, nil
}

// mountError adds the mount and its place to err; nil stays nil. An empty step
// says that err names the failed call itself.
func mountError(what, where, step string, err error) error {
	switch {
	case err == nil:
		return nil
	case step == "":
		return fmt.Errorf("mounting %s at %s: %w", what, where, err)
	}
	return fmt.Errorf("mounting %s at %s: %s: %w", what, where, step, err)
}

// String returns a phrase for errors, to stand after "mounting".
func (a action) String() string {
	return [...]string{"a writable directory", "a readable directory", "it read-only", "it onto itself",
		"a denial", "an empty directory", "a cover", "devices", "procfs"}[a]
}
