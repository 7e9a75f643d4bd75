package view

import (
	"cmp"
	"fmt"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/sandbox"
)

const (
	// defaultShm is the size of /dev/shm in bytes.
	defaultShm = 256 << 20
	// shmPerInode is how many bytes of the size allow one more file there. The
	// number must be bounded, because an empty file takes kernel memory that the
	// size does not count.
	shmPerInode = 4 << 10
	// deviceInodes bounds the files in /dev: the process can make some there.
	deviceInodes = "1024"
)

// deviceNodes are the devices of a view, with their numbers, which Linux never
// changes (Documentation/admin-guide/devices.txt).
var deviceNodes = []struct {
	name         string
	major, minor uint32
}{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
}

// deviceLinks are the symlinks in /dev, in pairs.
var deviceLinks = []string{
	"fd", "/proc/self/fd",
	"stdin", "/proc/self/fd/0",
	"stdout", "/proc/self/fd/1",
	"stderr", "/proc/self/fd/2",
	"ptmx", "pts/ptmx",
}

// sealedProcfs are the names that become read-only in a fresh procfs. Uid 0 of the
// host owns them, so a command that runs as uid 0 could write them, in whichever
// user namespace it is (sandbox.md 6.8 and 14.3).
var sealedProcfs = []string{
	"sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "mtrr", "scsi",
	"asound", "driver", "dynamic_debug", "pressure", "slabinfo", "tty",
}

// devices mounts a private /dev.
func (b *builder) devices(s *step, target int) error {
	dev, err := b.keep(newFilesystem("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, "mode", "0755", "size", "1m",
		"nr_inodes", deviceInodes))
	if err != nil {
		return mountError("devices", s.path, "", err)
	}
	// Attach it first: before Linux 6.15, nothing can be mounted on a mount that
	// is not attached.
	if err := attach(mount(dev), target); err != nil {
		return mountError("devices", s.path, "move_mount", err)
	}
	host, err := b.keep(resolve.OpenBeneath(b.original, "/dev", 0))
	if err != nil {
		return mountError("devices", s.path, "open", err)
	}
	for _, node := range deviceNodes {
		if err := b.device(host, node.name, dev, node.name, unix.Mkdev(node.major, node.minor)); err != nil {
			return mountError("a device", "/dev/"+node.name, "", err)
		}
	}
	if b.options.Terminal != "" {
		if err := b.device(b.original, b.options.Terminal[1:], dev, "console", 0); err != nil {
			return mountError(b.options.Terminal, "/dev/console", "", err)
		}
	}
	for i := 0; i < len(deviceLinks); i += 2 {
		if err := unix.Symlinkat(deviceLinks[i+1], dev, deviceLinks[i]); err != nil {
			return mountError("a symlink", "/dev/"+deviceLinks[i], "symlinkat", err)
		}
	}
	if err := b.terminals(dev); err != nil {
		return mountError("terminals", "/dev/pts", "", err)
	}
	if err := b.sharedMemory(dev, s.inside); err != nil {
		return mountError("shared memory", "/dev/shm", "", err)
	}
	for _, name := range b.resolved.Policy.Devices {
		if err := b.namedDevice(dev, name); err != nil {
			return mountError("a device", name, "", err)
		}
	}
	return nil
}

// namedDevice shows a device that the policy names, in its folder.
func (b *builder) namedDevice(dev int, name string) error {
	within := strings.TrimPrefix(name, "/dev/")
	switch err := unix.Fstatat(dev, within, &unix.Stat_t{}, unix.AT_SYMLINK_NOFOLLOW); err {
	case nil:
		return nil // every view has it
	case unix.ENOENT:
	default:
		return fmt.Errorf("fstatat: %w", err)
	}
	for i := range within {
		if within[i] == '/' {
			if err := unix.Mkdirat(dev, within[:i], 0o755); err != nil && err != unix.EEXIST {
				return fmt.Errorf("mkdirat: %w", err)
			}
		}
	}
	return b.device(b.original, name[1:], dev, within, 0)
}

// device binds the device at from in dir to the name to in dev. A device of the view
// itself must be a character device with that number; number is 0 for others. The mount is read-only,
// because otherwise the owner of the device could change its mode for the whole
// host. Writing to the device works on a read-only mount too.
func (b *builder) device(dir int, from string, dev int, to string, number uint64) error {
	fd, err := unix.Openat2(dir, from, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("fstat: %w", err)
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFCHR && (kind != unix.S_IFBLK || number != 0) || number != 0 && st.Rdev != number {
		return fmt.Errorf("the host has another object there, mode %#o, number %d:%d",
			st.Mode, unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
	m, err := clone(fd, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(int(m))
	if err := unix.Mknodat(dev, to, unix.S_IFREG|0o600, 0); err != nil {
		return fmt.Errorf("mknodat: %w", err)
	}
	return attachAt(m, dev, to)
}

// terminals mounts a new instance of devpts, which has no terminals of the host.
func (b *builder) terminals(dev int) error {
	pts, err := b.keep(newFilesystem("devpts", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, "ptmxmode", "0666", "mode", "0620"))
	if err != nil {
		return err
	}
	if err := unix.Mkdirat(dev, "pts", 0o755); err != nil {
		return fmt.Errorf("mkdirat: %w", err)
	}
	return attachAt(mount(pts), dev, "pts")
}

// sharedMemory mounts /dev/shm.
func (b *builder) sharedMemory(dev int, inside []spot) error {
	size := cmp.Or(b.options.ShmBytes, defaultShm)
	inodes := size/shmPerInode + 1
	for _, spot := range inside {
		inodes += int64(strings.Count(spot.path, "/"))
	}
	shm, err := b.keep(newFilesystem("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV,
		"mode", "1777", "size", strconv.FormatInt(size, 10), "nr_inodes", strconv.FormatInt(inodes, 10)))
	if err != nil {
		return err
	}
	if err := makeSpots(shm, "", "/dev/shm", inside, 0o700); err != nil {
		return err
	}
	if err := unix.Mkdirat(dev, "shm", 0o755); err != nil {
		return fmt.Errorf("mkdirat: %w", err)
	}
	return attachAt(mount(shm), dev, "shm")
}

// procfs mounts /proc, and covers what must not be written or read in it.
func (b *builder) procfs(target int) error {
	proc, err := b.newProc()
	if err != nil {
		return mountError("procfs", "/proc", "", err)
	}
	if err := attach(proc, target); err != nil {
		return mountError("procfs", "/proc", "move_mount", err)
	}
	if b.options.FreshProc {
		for _, name := range sealedProcfs {
			if err := overlay(int(proc), name, func(place int) (mount, error) {
				return clone(place, unix.MOUNT_ATTR_RDONLY)
			}); err != nil {
				return mountError("it read-only", "/proc/"+name, "", err)
			}
		}
	}
	for _, name := range sandbox.ProcfsSecrets() {
		if err := overlay(int(proc), name, func(int) (mount, error) { return b.masks.object("blank") }); err != nil {
			return mountError("an empty file", "/proc/"+name, "", err)
		}
	}
	return nil
}

// newProc returns a new procfs of this pid namespace, or the one of the old root.
// The new one shows each process only processes that it could trace (hidepid,
// proc(5)), and so neither init nor init's threads. Through the files of those, a
// command of uid 0 could change the scheduling of every process of its uid,
// whatever else is refused to it.
func (b *builder) newProc() (mount, error) {
	const attrs = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	if b.options.FreshProc {
		fd, err := b.keep(newFilesystem("proc", attrs, "hidepid", "ptraceable"))
		return mount(fd), err
	}
	host, err := b.keep(resolve.OpenBeneath(b.original, "/proc", 0))
	if err != nil {
		return -1, fmt.Errorf("open: %w", err)
	}
	m, err := clone(host, attrs|unix.MOUNT_ATTR_RDONLY)
	if err == nil {
		b.fds = append(b.fds, int(m))
	}
	return m, err
}

// overlay mounts what make returns on name in dir, if that exists.
func overlay(dir int, name string, make func(place int) (mount, error)) error {
	place, err := resolve.OpenBeneath(dir, "/"+name, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer unix.Close(place)
	m, err := make(place)
	if err != nil {
		return err
	}
	defer unix.Close(int(m))
	if err := attach(m, place); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// masks is a read-only file system of empty objects for covering others.
type masks struct {
	mount
	// holders has the names of the objects for steps that have spots inside: they
	// are empty except for places for the mounts of later steps.
	holders map[*step]string
}

// makeMasks makes the masks of a plan and mounts them on the old root, so that
// they disappear with it.
func (b *builder) makeMasks(plan *viewPlan) error {
	fd, err := b.keep(newFilesystem("tmpfs",
		unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC, "mode", "0700", "size", "1m"))
	if err != nil {
		return mountError("masks", "/", "", err)
	}
	b.masks = masks{mount: mount(fd), holders: map[*step]string{}}
	for _, object := range []struct {
		name string
		mode uint32
	}{
		{"denied", unix.S_IFDIR}, {"empty", unix.S_IFDIR | 0o555},
		// The mode of blank allows writing, so that connect(2) to such a file fails
		// with ECONNREFUSED, as without a listener, and not with EACCES.
		{"secret", unix.S_IFREG}, {"blank", unix.S_IFREG | 0o666},
	} {
		if object.mode&unix.S_IFMT == unix.S_IFDIR {
			err = unix.Mkdirat(fd, object.name, object.mode&^unix.S_IFMT)
		} else {
			err = unix.Mknodat(fd, object.name, object.mode, 0)
		}
		if err != nil {
			return mountError("masks", "/", "making "+object.name, err)
		}
	}
	if b.options.Resolver {
		if err := b.makeResolver(fd); err != nil {
			return mountError("the files of a resolver", "/", "", err)
		}
	}
	for i := range plan.steps {
		s := &plan.steps[i]
		if len(s.inside) == 0 || s.do != deny && s.do != hollow {
			continue
		}
		if err := b.masks.hold(s, strconv.Itoa(i)); err != nil {
			return mountError(s.do.String(), s.path, "", err)
		}
	}
	// Whatever is cloned from the masks is read-only then, too.
	if err := restrict(b.masks.mount, unix.MOUNT_ATTR_RDONLY, 0); err != nil {
		return mountError("masks", "/", "mount_setattr", err)
	}
	return mountError("masks", "/", "move_mount", attach(b.masks.mount, b.original))
}

// hold makes the directory for a step, which contains only the step's spots.
func (m *masks) hold(s *step, name string) error {
	if err := unix.Mkdirat(int(m.mount), name, 0o700); err != nil {
		return fmt.Errorf("mkdirat: %w", err)
	}
	mode := uint32(0o555)
	if s.do == deny {
		mode = 0o111
	}
	if err := makeSpots(int(m.mount), name, s.path, s.inside, mode); err != nil {
		return err
	}
	if err := unix.Fchmodat(int(m.mount), name, mode, 0); err != nil {
		return fmt.Errorf("chmod: %w", err)
	}
	m.holders[s] = name
	return nil
}

// object returns a mount of one of the objects; the caller closes it.
func (m *masks) object(name string) (mount, error) {
	fd, err := unix.OpenTree(int(m.mount), name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open_tree of a mask: %w", err)
	}
	return mount(fd), nil
}

// cover returns the mount that covers target for a step; -1 if none is needed.
func (m *masks) cover(s *step, target int) (mount, error) {
	mode, err := resolve.FileKind(target)
	if err != nil {
		return -1, fmt.Errorf("fstat: %w", err)
	}
	dir := mode == unix.S_IFDIR
	switch {
	case s.do == mute && mode != unix.S_IFSOCK:
		return -1, nil
	case s.do == mute:
		return m.object("blank")
	case s.do == deny && !dir:
		return m.object("secret")
	case !dir:
		return -1, unix.ENOTDIR
	case m.holders[s] != "":
		return m.object(m.holders[s])
	case s.do == deny:
		return m.object("denied")
	}
	return m.object("empty")
}

// makeSpots makes the spots in the file system fs. The directory at of fs (""
// is its root) has the path root in the view, and the spots lie below it. It
// also makes the directories on the way to them, with that mode.
func makeSpots(fs int, at, root string, spots []spot, mode uint32) error {
	var made []string
	for _, s := range spots {
		name := strings.Trim(strings.TrimPrefix(s.path, root), "/")
		if name == "" {
			continue // the root itself exists
		}
		for i := range name {
			if name[i] != '/' {
				continue
			}
			parent := path.Join(at, name[:i])
			switch err := unix.Mkdirat(fs, parent, 0o700); err {
			case nil:
				made = append(made, parent)
			case unix.EEXIST:
			default:
				return fmt.Errorf("making the parents of %s: mkdirat: %w", s.path, err)
			}
		}
		var err error
		name = path.Join(at, name)
		switch {
		case s.link != "":
			err = unix.Symlinkat(s.link, fs, name)
		case s.dir:
			err = unix.Mkdirat(fs, name, 0o700)
		default:
			err = unix.Mknodat(fs, name, unix.S_IFREG|0o600, 0)
		}
		if err != nil && err != unix.EEXIST {
			return fmt.Errorf("making a place for %s: %w", s.path, err)
		}
	}
	for _, name := range made {
		if err := unix.Fchmodat(fs, name, mode, 0); err != nil {
			return fmt.Errorf("chmod of %s: %w", name, err)
		}
	}
	return nil
}
